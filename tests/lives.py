"""Runs state machines at two lengths: short by default, and in the full suite 5,000 runs of 100 steps."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

FULL_RUNS, FULL_STEPS = 5_000, 100


def both_lengths(runs: int, steps: int) -> pytest.MarkDecorator:
    """Parametrizes `runs` and `steps` with these values, and with the larger ones under the marker `full`."""
    full = pytest.param(FULL_RUNS, FULL_STEPS, marks=pytest.mark.full, id="full")
    return pytest.mark.parametrize(("runs", "steps"), [pytest.param(runs, steps, id="quick"), full])


def live(machine: type[RuleBasedStateMachine], runs: int, steps: int) -> None:
    """Run the machine `runs` times, with the same examples every time."""
    chosen = settings(
        max_examples=runs,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=chosen)
