"""Fixtures and settings for all tests. Triton, OpenMP and Numba read the environment when first imported, and transformers
imports Triton where it can: so the environment is set before any test is collected.

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
    # xdist runs one process per core; tests of threading set thread counts themselves
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Hypothesis looks for the object that holds its random numbers; it finds none once the command line has called gc.freeze
import hypothesis.internal.observability  # noqa: F401  # isort: skip

from paceline.kernels.native.vectors import NUMBA_VARIABLES  # isort: skip

# tests compile kernels in their own process too
os.environ |= NUMBA_VARIABLES

# after the environment is set: the next import may import Triton
from paceline.tree import DraftTree  # isort: skip

collect_ignore = ["clients"]
"""These need client libraries outside the project's own environment: `make test-clients`."""


@pytest.fixture
def ctrl_c_is_heard() -> Iterator[None]:
    """A shell makes background processes ignore Ctrl-C; this installs Python's default handler."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True, scope="session")
def every_tree_is_looked_over() -> Iterator[None]:
    """`DraftTree.unchecked`, for trees built from trees or by drafters, skips the constructor's checks; in tests it runs them."""
    unseen = DraftTree.unchecked

    def sound(**fields: Any) -> DraftTree:
        DraftTree(**{one.name: fields[one.name] for one in dataclasses.fields(DraftTree)})
        return unseen(**fields)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DraftTree, "unchecked", staticmethod(sound))
        yield


@pytest.fixture(autouse=True)
def _loggers_as_they_were() -> Iterator[None]:
    """A server configures the loggers of its process to write to the test's stream, which is closed before the next test logs."""
    named = [logging.getLogger(name) for name in (None, "paceline", "uvicorn")]
    before = [(one.handlers[:], one.level, one.propagate) for one in named]
    yield
    for one, (handlers, level, propagate) in zip(named, before, strict=True):
        one.handlers[:], one.propagate = handlers, propagate
        one.setLevel(level)
