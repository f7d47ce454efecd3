"""What a machine can do, as LLVM tells it."""

from __future__ import annotations

import pytest

from paceline.kernels.native import vectors


@pytest.mark.parametrize(
    ("triple", "features"),
    [("aarch64-unknown-linux-gnu", {"neon"}), ("arm64-apple-darwin23.6.0", {"neon", "dotprod"})],
)
def test_vectors_are_part_of_the_arm_architecture_also_where_no_feature_is_listed(
    monkeypatch: pytest.MonkeyPatch, triple: str, features: set[str]
) -> None:
    """On macOS LLVM lists none."""
    monkeypatch.setattr(vectors, "_listed", str)
    monkeypatch.setattr(vectors, "_triple", lambda: triple)
    machine = vectors._detected()
    assert (machine.lanes, machine.registers, machine.features) == (4, 32, features)
