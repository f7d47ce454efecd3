"""Triton reads this when it is first imported, which transformers does where it can: so it is said before any test is collected.

On a machine with a GPU `TRITON_INTERPRET=0 pytest tests/kernels` runs the compiled kernels instead.
"""

import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import pytest

os.environ.setdefault("TRITON_INTERPRET", "1")

# Hypothesis looks for who holds its random numbers, and finds nobody once the command line has frozen what there is
import hypothesis.internal.observability  # noqa: F401  # isort: skip

# after the environment is set: what follows may import Triton
from paceline.tree import DraftTree  # isort: skip

collect_ignore = ["clients"]
"""Needs clients that the project's own environment does not have: `make test-clients`."""


@pytest.fixture(autouse=True, scope="session")
def every_tree_is_looked_over() -> Iterator[None]:
    """Trees that are made of trees, or grown by a drafter, skip what the constructor checks; in tests they do not."""
    unseen = DraftTree._sound

    def sound(**fields: Any) -> DraftTree:
        DraftTree(**{one.name: fields[one.name] for one in dataclasses.fields(DraftTree)})
        return unseen(**fields)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DraftTree, "_sound", staticmethod(sound))
        yield
