"""Measure: how long forwards and drafts take on this machine, before the first step, for policies that need it.

It takes fractions of a second for small models, some seconds for large ones on a slow machine; the results are kept on disk by
model, machine and threads, for later starts. They are where a policy starts from: every step corrects them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence as Many
from dataclasses import dataclass
from hashlib import sha256
from logging import getLogger
from math import inf
from pathlib import Path
from time import perf_counter
from typing import TypeVar

import torch

from paceline.budget import Budget
from paceline.cache.pages import OutOfPages
from paceline.drafters.base import Drafter
from paceline.kernels.compiled import SOURCES
from paceline.learning.costs import Costs
from paceline.learning.forward_curve import ForwardCurve
from paceline.machine import processor, user_cache
from paceline.models.base import LanguageModel, ModelError
from paceline.models.quiet import sentence
from paceline.params import SamplingParams
from paceline.sequence import Sequence
from paceline.shortage import memory_ended
from paceline.speculative import Speculative
from paceline.step import Feed, Step, Verdict
from paceline.tree import DraftTree
from paceline.version import __version__
from paceline.whole_file import put_whole

Made = TypeVar("Made")
_ROWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 96)
_BATCHES = (1, 4, 16)
_SIDE_BY_SIDE = 3
"""Sequences whose single rows are measured in one forward, to see what a sequence costs beside its rows."""
_CONTEXT, _FAR = 127, 4096
"""Tokens of context in most measurements; and at most in the one that finds what a longer context costs."""
_FAR_ROWS, _FAR_S = 16, 1.0
"""Rows in the latter, beside one row; and seconds after which no further turn is begun."""
_FAR_BYTES, _FAR_SHARE = 1 << 22, 1 / 16
"""The far context takes no more memory than this, or than this part of the target's weights, whichever is more."""
_REPEATS = 5
"""The fastest of so many runs counts: disturbances only add time."""
_PATIENCE_S = 3.0
"""No further point is begun after so many seconds; the curve is extrapolated from those it has."""
_LOOKED_AT_ROWS, _LOOK_S, _ALIKE = 16, 0.05, 1.35
"""A look at the machine: its rows beside one row, its seconds, and the factor by which the ratios of two looks may differ."""
_MOST_S = 3600.0
"""No forward takes as long."""
_KEYS = range(-1, -1 - max(_BATCHES), -1)
"""Keys below every key that an engine assigns."""


def some_tokens(count: int, vocab_size: int) -> tuple[int, ...]:
    """Random token ids, the same ones at every call."""
    drawn = torch.randint(0, vocab_size, (count,), generator=torch.Generator().manual_seed(count))
    return tuple(drawn.tolist())


class ModelForward:
    """Forwards of up to `rows` rows, a chain each, for up to `batch` sequences behind `context` cached tokens."""

    def __init__(self, model: LanguageModel, context: int, rows: int, batch: int = 1) -> None:
        self._model, self._cache, self._context = model, model.new_cache(), context
        self._tokens = some_tokens(context + rows, model.vocab_size)
        self._sequences = [Sequence(key, self._tokens, SamplingParams(), 0) for key in _KEYS[:batch]]
        # one after another: all at once would need buffers for as many rows, which the model would keep
        for sequence in self._sequences if context else ():
            model.logits_after([(sequence, self._tokens[:context])], self._cache)

    @property
    def token_bytes(self) -> float:
        """Bytes of the cache per token of context, its share of the reserve included."""
        return self._cache.held_bytes / len(self._tokens)

    def __call__(self, rows: int, batch: int = 1) -> float:
        """Seconds of one forward, with logits for every row; the cache is left as before."""
        root, *drafted = self._tokens[self._context : self._context + rows]
        tree = DraftTree.chain(root, drafted, "measured")
        step = Step.of([Feed(sequence, self._context, (root,), tree) for sequence in self._sequences[:batch]])
        began = perf_counter()
        self._cache.stage(step)
        self._model.score(step, self._cache)
        if self._model.returns_early:
            torch.cuda.synchronize()
        seconds = perf_counter() - began
        self._cache.commit([Verdict()] * batch)
        for sequence in self._sequences[:batch]:
            self._cache.truncate(sequence.key, self._context)
        return seconds


class FarForward(ModelForward):
    """`ModelForward` behind a context that was never computed; attention to whatever is there takes as long. reaches: whether
    the model's cache can hold such a context."""

    def __init__(self, model: LanguageModel, context: int, rows: int) -> None:
        super().__init__(model, 0, context + rows)
        self.reaches = self._cache.pretend(self._sequences[0], context)
        self._context = context


class DraftOnce:
    """Drafts of one costly drafter for a batch, as in the middle of an answer. before: what runs before each, untimed."""

    def __init__(self, drafter: Drafter, vocab_size: int, context: int, before: Callable[[int], object]) -> None:
        self._drafter, self._before = drafter, before
        tokens = some_tokens(context, min(vocab_size, drafter.known_tokens))
        self._sequences = [Sequence(key, tokens, SamplingParams(), 0) for key in _KEYS]

    def __call__(self, depth: int, batch: int) -> float:
        """Seconds of one draft of `depth` levels; the prompt was read before."""
        budgets = [Budget(depth * self._drafter.info.width, depth)] * batch
        self._before(1)
        began = perf_counter()
        self._drafter.propose(self._sequences[:batch], budgets)
        return perf_counter() - began

    def forget(self) -> None:
        """Make the next draft read the prompt anew."""
        for sequence in self._sequences:
            self._drafter.release(sequence.key)


def measure(speculative: Speculative, longest: int, draft: str) -> None:
    """Fill the costs of a policy, from disk where the same was measured before.

    A curve measured on a busy machine has another shape: rows look free beside the wait for a processor, and steps correct a
    curve only where it is used. So costs from disk are compared with a look at the machine, and measured again where they differ,
    unless the machine is busy now. Its overall speed does not matter: costs are scaled to the present one.

    Where memory runs out, the measurement is left out, and nothing is kept on disk. longest: tokens that a sequence may have.
    draft: the spec that the drafters were built from. Raises ModelError where there is too little memory for any forward.
    """
    target = speculative.target
    drafters = [(part.info, part.measured_as) for part in speculative.drafter.parts if part.costly]
    file, costs = _file(target, (draft, longest, *drafters)), Costs()
    spared = _Spared()

    def look() -> _Look | None:
        return spared(lambda: _look(target, longest))

    then, now = _read(file, costs) if file is not None else None, look()
    if then is not None and now is not None and not then.like(now):
        now = now.fastest(look() or now)
    if then is None or (now is not None and not then.like(now)):
        fresh = Costs()
        _measure(speculative, fresh, max(min(_CONTEXT, longest // 2), 1), longest, spared)
        again = look()
        if then is None or now is None or again is None or now.like(again):
            costs, then, now = fresh, again, again
            if file is not None and again is not None and not spared.ended:
                _write(file, fresh, again)
    speculative.costs.start_from(costs, now.one_s / then.one_s if now is not None and then is not None else 1.0)


class _Spared:
    """Runs measurements that may run out of memory. ended: whether any did."""

    ended = False

    def __call__(self, run: Callable[[], Made]) -> Made | None:
        """The result of `run`; None where memory ran out."""
        try:
            return run()
        except BaseException as error:
            if not (isinstance(error, OutOfPages) or memory_ended(error)):
                raise
        self.ended = True
        # only now, as the error is gone, is its memory free
        torch.cuda.empty_cache()
        return None


@dataclass(frozen=True)
class _Look:
    """Seconds of a forward of one row, of several rows, and of one row for each of several sequences."""

    one_s: float
    rows_s: float
    several_s: float

    def like(self, other: _Look) -> bool:
        """Whether both have the same ratios, up to the factor `_ALIKE`."""
        ratios = ((self.rows_s, other.rows_s), (self.several_s, other.several_s))
        return all(1 / _ALIKE < (mine / self.one_s) / (its / other.one_s) < _ALIKE for mine, its in ratios)

    def fastest(self, other: _Look) -> _Look:
        """The faster of both for each forward."""
        return _Look(min(self.one_s, other.one_s), min(self.rows_s, other.rows_s), min(self.several_s, other.several_s))


def _look(target: LanguageModel, longest: int) -> _Look:
    """A look of some hundredths of a second, or of three forwards if they take longer; almost no context, which takes time."""
    rows = max(min(_LOOKED_AT_ROWS, longest - 1), 1)
    alone, together = ModelForward(target, 1, rows), ModelForward(target, 1, 1, _SIDE_BY_SIDE)
    began = perf_counter()
    found = _Look(alone(1), alone(rows), together(1, _SIDE_BY_SIDE))
    for _ in range(_REPEATS):
        if perf_counter() - began > _LOOK_S:
            break
        found = found.fastest(_Look(_warmed(alone, 1), _warmed(alone, rows), _warmed(together, 1, _SIDE_BY_SIDE)))
    return found


def _measure(speculative: Speculative, costs: Costs, context: int, longest: int, spared: _Spared) -> None:
    target, began = speculative.target, perf_counter()
    sizes = [rows for rows in _ROWS if context + rows <= longest]
    if not sizes:
        # no token can be decoded behind any other
        return
    forward = spared(lambda: ModelForward(target, context, max(sizes)))
    if forward is None:
        # reading a prompt takes more memory than reading a token
        context = 1
        forward = spared(lambda: ModelForward(target, context, max(sizes)))
    points = _forwards(forward, sizes, spared) if forward is not None else {}
    if forward is None or not points:
        raise ModelError(f"the device has too little memory for a forward of '{target.name}'")
    for rows, seconds in points.items():
        costs.curve.put(rows, seconds)
    if _SIDE_BY_SIDE in sizes:
        # on a slow machine reading three prompts takes longer than the measurement behind them
        behind = context if perf_counter() - began < _PATIENCE_S else 1
        costs.sequence_s = spared(lambda: _beside(target, forward, context, behind)) or 0.0
    for part in speculative.drafter.parts:
        if part.costly:
            # behind a forward of the target, as in a step: the draft model's weights have left the processor's caches
            draft = DraftOnce(part, target.vocab_size, context, forward)
            spared(lambda part=part, draft=draft: _measure_draft(costs, part, draft, context, began))
            draft.forget()
    # last, since it takes the longest and matters least: on a slow machine the time is for the others
    most = max(_FAR_BYTES, _FAR_SHARE * target.weights_bytes) / max(forward.token_bytes, 1.0)
    far = int(min(_FAR, longest - _FAR_ROWS, most))
    if far > 2 * context:
        spared(lambda: _measure_contexts(costs.curve, forward, FarForward(target, far, _FAR_ROWS), context, far))


def _beside(target: LanguageModel, forward: ModelForward, context: int, behind: int) -> float:
    """`_sequence_s` behind `behind` tokens. forward: of one sequence behind `context`."""
    alone = forward if behind == context else ModelForward(target, behind, _SIDE_BY_SIDE)
    # room for two rows, of which one is used, so that the caches' slabs are as large as the other's
    return _sequence_s(alone, ModelForward(target, behind, 2, _SIDE_BY_SIDE))


def _measure_draft(costs: Costs, part: Drafter, draft: DraftOnce, context: int, began: float) -> None:
    """Measure the drafts of one drafter, and its reading of a text; smaller batches come first."""
    reading_s = draft(1, 1)
    # the first run takes longer
    draft.forget()
    reading_s = min(reading_s, draft(1, 1))
    for batch in _BATCHES:
        for depth in sorted({1, part.budget.depth}):
            patient = perf_counter() - began < 2 * _PATIENCE_S
            if patient or batch == 1:
                # a draft that was never measured would seem free
                costs.measured(part.name, depth, batch, (_fastest if patient else _warmed)(draft, depth, batch))
            if (batch, depth) == (1, 1):
                # at once, since memory may run out with the next one
                costs.reading[part.name] = max(reading_s - costs.draft_s(part.name, 1, 1), 0.0) / context


def _measure_contexts(curve: ForwardCurve, near: ModelForward, far: FarForward, context: int, tokens: int) -> None:
    """Measure what each further token of a context adds to a forward, and to each of its rows."""
    curve.context = context
    if not far.reaches:
        return
    began, fastest = perf_counter(), dict[tuple[bool, int], float]()
    for turn in range(_REPEATS):
        if turn and perf_counter() - began > _FAR_S:
            break
        for rows in (1, _FAR_ROWS):
            for beyond, forward in ((False, near), (True, far)):
                fastest[beyond, rows] = min(_warmed(forward, rows), fastest.get((beyond, rows), inf))
    one, some = (max(fastest[True, rows] - fastest[False, rows], 0.0) / (tokens - context) for rows in (1, _FAR_ROWS))
    curve.row_key_s = max(some - one, 0.0) / (_FAR_ROWS - 1)
    curve.key_s = max(one - curve.row_key_s, 0.0)


def _forwards(forward: Callable[[int], float], sizes: Many[int], spared: _Spared) -> dict[int, float]:
    """Seconds by rows: all sizes in turns, so that disturbances affect all of them; more rows never take less. Sizes from the one
    on at which memory runs out are left out."""
    began, fastest = perf_counter(), dict[int, float]()
    for turn in range(_REPEATS):
        for rows in sizes if not turn else tuple(fastest):
            if perf_counter() - began > _PATIENCE_S and (turn or rows > 2):
                break
            seconds = spared(lambda rows=rows: _warmed(forward, rows))
            if seconds is None:
                break
            fastest[rows] = min(seconds, fastest.get(rows, inf))
    least = inf
    for rows in sorted(fastest, reverse=True):
        least = fastest[rows] = min(fastest[rows], least)
    return fastest


def _sequence_s(alone: Callable[..., float], together: Callable[..., float]) -> float:
    """Seconds that a sequence adds to a forward beside its rows: as many rows of one sequence and of several, in turns.

    The difference is small, and is multiplied by up to fifteen: without turns, what is measured first would seem slower.
    """
    began, seconds = perf_counter(), list[tuple[float, float]]()
    while len(seconds) < _REPEATS and (not seconds or perf_counter() - began < _FAR_S):
        seconds.append((_warmed(alone, _SIDE_BY_SIDE), _warmed(together, 1, _SIDE_BY_SIDE)))
    one, several = map(min, zip(*seconds, strict=True))
    return max(several - one, 0.0) / (_SIDE_BY_SIDE - 1)


def _warmed(run: Callable[..., float], *shape: int) -> float:
    """Seconds of the second of two runs: a run of another shape before them left other data in the processor's caches."""
    run(*shape)
    return run(*shape)


def _fastest(run: Callable[..., float], *shape: int) -> float:
    """The fewest seconds of some runs, the first of which warms up."""
    run(*shape)
    return min(run(*shape) for _ in range(_REPEATS))


def _file(target: LanguageModel, measured: tuple[object, ...]) -> Path | None:
    """The file for the costs of this model on this machine, if there is a place. measured: what else they depend on."""
    device = torch.cuda.get_device_name() if target.returns_early else ""
    machine = (processor(), os.cpu_count(), torch.get_num_threads(), device)
    key = (__version__, SOURCES, *machine, target.measured_as, *measured)
    own = user_cache()
    return own and own / "costs" / f"{sha256(repr(key).encode()).hexdigest()[:24]}.json"


def _read(file: Path, costs: Costs) -> _Look | None:
    """Read costs from a file; returns the look at the machine of then, or None where no usable file is there."""
    try:
        held = json.loads(file.read_text())
        curve = [(int(rows), float(seconds)) for rows, seconds in held["curve"]]
        drafts = [(str(part), int(depth), int(batch), float(seconds)) for part, depth, batch, seconds in held["drafts"]]
        reading = {str(part): float(seconds) for part, seconds in held["reading"].items()}
        sequence_s = float(held["sequence_s"])
        context, key_s, row_key_s = int(held["context"]), float(held["key_s"]), float(held["row_key_s"])
        look = _Look(*map(float, held["look"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    forwards_s = [*[seconds for _, seconds in curve], look.one_s, look.rows_s, look.several_s]
    if not curve or min(rows for rows, _ in curve) < 1 or not all(0.0 < seconds < _MOST_S for seconds in forwards_s):
        return None
    if not all(0.0 <= seconds < _MOST_S for seconds in (sequence_s, key_s, row_key_s)):
        return None
    costs.curve.context, costs.curve.key_s, costs.curve.row_key_s = context, key_s, row_key_s
    for rows, seconds in curve:
        costs.curve.put(rows, seconds)
    for part, depth, batch, seconds in drafts:
        costs.measured(part, depth, batch, seconds)
    costs.reading.update(reading)
    costs.sequence_s = sequence_s
    return look


def _write(file: Path, costs: Costs, look: _Look) -> None:
    """Keep costs for the next start; where they cannot be written, this is logged, and they are measured again."""
    held = {
        "curve": sorted(costs.curve.points.items()),
        "reading": costs.reading,
        "sequence_s": costs.sequence_s,
        "context": costs.curve.context,
        "key_s": costs.curve.key_s,
        "row_key_s": costs.curve.row_key_s,
        "look": [look.one_s, look.rows_s, look.several_s],
        "drafts": [(part, depth, batch, s) for part, known in costs.drafts.items() for (depth, batch), s in known.points.items()],
    }
    try:
        put_whole(file, json.dumps(held).encode(), 0o644)
    except OSError as error:
        message = f"what forwards take cannot be kept in '{file.parent}' ({sentence(error)}): every start measures it"
        getLogger("paceline").info(message)
