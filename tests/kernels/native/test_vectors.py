"""The vector lanes, registers and features of a processor, as LLVM reports them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from paceline.kernels.native import vectors


@pytest.mark.parametrize(
    ("triple", "features"),
    [("aarch64-unknown-linux-gnu", {"neon"}), ("arm64-apple-darwin23.6.0", {"neon", "dotprod"})],
)
def test_vectors_are_part_of_the_arm_architecture_also_where_no_feature_is_listed(
    monkeypatch: pytest.MonkeyPatch, triple: str, features: set[str]
) -> None:
    """On macOS LLVM lists no features."""
    monkeypatch.setattr(vectors, "_listed", str)
    monkeypatch.setattr(vectors, "_triple", lambda: triple)
    machine = vectors._detected()
    assert (machine.lanes, machine.registers, machine.features) == (4, 32, features)


def test_the_environment_of_an_application_stays_as_it_is() -> None:
    """So Numba code of the application and of its children is compiled as before. NUMBA_VARIABLES passes the target on."""
    script = (
        "import os; before = dict(os.environ)\n"
        "from paceline.kernels.native.vectors import NUMBA_VARIABLES, TARGET\n"
        "assert os.environ == before\n"
        "print(NUMBA_VARIABLES, TARGET)"
    )
    own = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    told = subprocess.run([sys.executable, "-c", script], env=own, check=True, capture_output=True, text=True).stdout
    again = subprocess.run([sys.executable, "-c", script], env=own | vectors.NUMBA_VARIABLES, capture_output=True, text=True)
    assert told == again.stdout == f"{vectors.NUMBA_VARIABLES} {vectors.TARGET}\n"
