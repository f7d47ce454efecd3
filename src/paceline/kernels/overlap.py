"""Overlap: on devices that support it, a kernel begins while the previous one ends.

A model's step is some hundred launches, and if each waits for the last program of the previous one, the device idles every
time. Kernels with dependent launch begin early, and wait themselves before they access what others wrote. Every kernel here waits
for the previous one, which has waited for its own predecessor, so that all earlier launches are complete by then.

Source: programmatic dependent launch, CUDA C++ Programming Guide; devices from compute capability 9.0 on.
"""

# pyright: reportMissingImports=false, reportOperatorIssue=false, reportCallIssue=false, reportAttributeAccessIssue=false
# ... for Triton is optional, and its stubs know neither the values of a kernel nor the options of a launch

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def begin(early: tl.constexpr):
    """Let the next kernel begin, and wait until the previous one's writes are visible."""
    if early:
        gdc_launch_dependents()
        gdc_wait()


def overlapped(device: torch.device) -> dict[str, Any]:
    """Launch options: whether the kernel begins early, as a constant of the kernel and as an option of the launch."""
    return {"early": True, "launch_pdl": True} if since_hopper(device) else {"early": False}


@functools.cache
def since_hopper(device: torch.device) -> bool:
    """Whether it is an NVIDIA device from Hopper on: there kernels may begin early, and tiles be copied by descriptors."""
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)
