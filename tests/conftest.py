"""Triton, OpenMP and Numba read the environment when they are first imported, Triton by transformers where it can: so it is set
before any test is collected.

On a machine with a GPU `TRITON_INTERPRET=0 pytest tests/kernels` runs the compiled kernels instead.
"""

import dataclasses
import logging
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

os.environ.setdefault("TRITON_INTERPRET", "1")
if "PYTEST_XDIST_WORKER" in os.environ:
    # there is such a process for each core; tests that are about threads ask for them
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Hypothesis looks for who holds its random numbers, and finds nobody once the command line has frozen what there is
import hypothesis.internal.observability  # noqa: F401  # isort: skip

from paceline.kernels.native.vectors import NUMBA_VARIABLES  # isort: skip

# tests compile kernels in their own process too
os.environ |= NUMBA_VARIABLES

# after the environment is set: what follows may import Triton
from paceline.tree import DraftTree  # isort: skip

collect_ignore = ["clients"]
"""Needs clients that the project's own environment does not have: `make test-clients`."""


@pytest.fixture
def ctrl_c_is_heard() -> Iterator[None]:
    """A shell has what it runs in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True, scope="session")
def every_tree_is_looked_over() -> Iterator[None]:
    """Trees that are made of trees, or grown by a drafter, skip what the constructor checks; in tests they do not."""
    unseen = DraftTree.unchecked

    def sound(**fields: Any) -> DraftTree:
        DraftTree(**{one.name: fields[one.name] for one in dataclasses.fields(DraftTree)})
        return unseen(**fields)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DraftTree, "unchecked", staticmethod(sound))
        yield


@pytest.fixture(autouse=True)
def _loggers_as_they_were() -> Iterator[None]:
    """A server says where its process logs to: a test's own stream, which is closed when the next one logs."""
    named = [logging.getLogger(name) for name in (None, "paceline", "uvicorn")]
    before = [(one.handlers[:], one.level, one.propagate) for one in named]
    yield
    for one, (handlers, level, propagate) in zip(named, before, strict=True):
        one.handlers[:], one.propagate = handlers, propagate
        one.setLevel(level)
