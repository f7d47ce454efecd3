"""A simulated machine: every operation takes a stated time, so that a policy's decisions and their speedups are the same
wherever tests run.

The model and its drafts are real; the clock is not. Timing noise and mutual slowdowns are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import clock
from paceline.bench.tasks import Task
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.engine import measure
from paceline.engine.engine import Engine
from paceline.engine.llm import LLM
from paceline.learning import step_time
from paceline.models.native import NativeModel
from paceline.params import SamplingParams
from paceline.policies import adaptive
from paceline.step import Step


@dataclass(frozen=True)
class Speeds:
    """Milliseconds. forward: by rows, linear between. level, read: of a draft model, per level and per token it reads. draft,
    look_up: per call of a draft model, and of a lookup. row: of verifying one row. beside: of a step, whatever is drafted.
    thought, learnt: of considering a draft model, and of learning from a step."""

    forward: dict[int, float]
    level: float
    read: float
    draft: float = 0.05
    look_up: float = 0.06
    row: float = 0.003
    beside: float = 0.12
    thought: float = 0.02
    learnt: float = 0.03

    def forward_ms(self, rows: int) -> float:
        return float(np.interp(rows, list(self.forward), list(self.forward.values())))

    def draft_ms(self, levels: int) -> float:
        # to find that no level is worth drafting takes one level
        return self.draft + self.level * max(levels, 1)


ZEN4 = {
    1: Speeds({1: 0.93, 2: 1.0, 4: 1.5, 8: 2.75, 16: 5.4, 32: 10.8, 64: 21.6, 512: 170.0}, level=0.085, read=0.025),
    2: Speeds({1: 0.6, 2: 0.62, 4: 0.75, 8: 1.35, 16: 2.8, 32: 5.6, 64: 11.1, 512: 80.0}, level=0.068, read=0.012),
}
"""By threads: approximate costs of the embedded model on a Zen 4 processor (`benchmarks/zen4`)."""


class Simulation:
    """An engine of the embedded model on such a machine, while the patches last."""

    def __init__(self, speeds: Speeds, patch: pytest.MonkeyPatch, cache: Path) -> None:
        self.speeds, self._patch = speeds, patch
        self._now_s = 1000.0
        self._target: object = None
        # costs measured here are valid nowhere else
        patch.setenv("XDG_CACHE_HOME", str(cache))
        for module in (clock, measure, step_time, adaptive):
            patch.setattr(module, "perf_counter", self._now)
        self._takes(NativeModel, "score", self._forward_ms)
        self._takes(ModelDrafter, "propose", lambda _, trees, *rest: speeds.draft_ms(max(tree.deepest for tree in trees)))
        self._takes(NgramDrafter, "propose", lambda *_: speeds.look_up)
        self._takes(Engine, "step", lambda *_: speeds.beside)
        self._takes(adaptive.AdaptivePolicy, "budgets", lambda _, budgets, part, *rest: speeds.thought * part.costly)
        self._takes(adaptive.AdaptivePolicy, "observe", self._observe_ms)
        self._llm = LLM("paceline-14m", "none", shortest_prefix=sys.maxsize)
        self._target = self._llm.target
        assert isinstance(self._target, NativeModel)

    def seconds(self, draft: str, tasks: list[Task], repeats: int, max_tokens: int = 96) -> dict[str, float]:
        """Per task, seconds to answer its prompts one after another, `repeats` times; the drafter is new, and forgets all texts
        before each repeat."""
        self._llm.use(draft)
        engine, spent_s = self._llm.engine, dict[str, float]()
        for task in tasks:
            began_s = self._now_s
            for _ in range(repeats):
                engine.speculative.drafter.forget()
                for item in task.items:
                    sequence = engine.add(self._llm.tokenizer.encode(item.texts[0]), SamplingParams(max_tokens=max_tokens))
                    while sequence.finish_reason is None:
                        engine.step()
            spent_s[task.name] = self._now_s - began_s
        return spent_s

    def _now(self) -> float:
        # no two readings are equal, or code would divide by a zero interval
        self._now_s += 2e-7
        return self._now_s

    def _takes(self, kind: type, name: str, ms: Callable[..., float]) -> None:
        """Make a method take time. ms: called with the method's object, its return value and its arguments."""
        real = getattr(kind, name)

        def timed(one: Any, *args: Any, **named: Any) -> Any:
            returned = real(one, *args, **named)
            self._now_s += 1e-3 * ms(one, returned, *args)
            return returned

        self._patch.setattr(kind, name, timed)

    def _forward_ms(self, model: NativeModel, _: object, step: Step, *rest: object) -> float:
        # a draft model reads the missing tokens of a text this way
        rows = len(step.tokens)
        return self.speeds.forward_ms(rows) if model is self._target else self.speeds.read * rows

    def _observe_ms(self, policy: Any, _: None, sequences: Any, trees: Any, *rest: object) -> float:
        return self.speeds.learnt * policy.learns + self.speeds.row * sum(map(len, trees))
