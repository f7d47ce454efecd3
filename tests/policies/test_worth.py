"""Whether `auto` is worth using: compared with the best fixed drafter, whatever the order of the texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.bench.tasks import load_tasks
from simulated import ZEN4, Simulation

FIXED = ("none", "ngram", 'model:"paceline-14m-draft",depth=5@int8')
ALL = "e2e,sql,maths,code,story,copy"


def compared(simulation: Simulation, named: str, repeats: int) -> dict[str, tuple[float, float]]:
    """Per task, the speed of `auto` relative to the best fixed drafter, and to no drafts."""
    tasks = load_tasks(named, 4)
    taken = {draft: simulation.seconds(draft, tasks, repeats) for draft in (*FIXED, "auto")}
    return {
        task.name: (
            min(taken[draft][task.name] for draft in FIXED) / taken["auto"][task.name],
            taken["none"][task.name] / taken["auto"][task.name],
        )
        for task in tasks
    }


@pytest.mark.parametrize(
    ("threads", "named", "repeats"),
    [
        (1, "maths,sql", 3),
        (2, "maths,sql", 3),
        *(
            pytest.param(threads, ",".join(order), 6, marks=pytest.mark.full)
            for threads in (1, 2)
            for order in (ALL.split(","), ALL.split(",")[::-1], ["maths", "sql", "story", "e2e", "copy", "code"])
        ),
    ],
)
def test_auto_is_as_good_as_the_best_choice_whatever_came_before(
    threads: int, named: str, repeats: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = compared(Simulation(ZEN4[threads], monkeypatch, tmp_path), named, repeats)
    for task, (best, plain) in found.items():
        assert best > 0.95, (task, found)
        assert plain > 0.97, (task, found)


@pytest.mark.parametrize("threads", [1, 2])
def test_auto_takes_no_longer_than_no_drafts_where_nothing_can_be_guessed(
    threads: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = compared(Simulation(ZEN4[threads], monkeypatch, tmp_path), "random", 3)
    assert found["random"][1] > 0.97, found
