"""Overlap: on devices that can, a kernel begins while the one before it ends.

A model's step is some hundred launches, and where each waits for the last program of the one before, the device idles every
time. Kernels that are launched dependent begin early and wait by themselves before they touch what others wrote. Every kernel
here waits for the one before it, so that whatever was launched earlier still is over by then.

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
    """Let the next kernel begin, and wait for what the one before wrote."""
    if early:
        gdc_launch_dependents()
        gdc_wait()


def overlapped(device: torch.device) -> dict[str, Any]:
    """Options of a launch: whether the kernel is to begin early, told to it and to its launch."""
    return {"early": True, "launch_pdl": True} if since_hopper(device) else {"early": False}


@functools.cache
def since_hopper(device: torch.device) -> bool:
    """Whether it is one of NVIDIA's, of Hopper or later: kernels may begin early there, and tiles be copied by descriptors."""
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)
