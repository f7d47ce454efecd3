"""Check: is speculation lossless here? Where it promises the text, run plain decoding too and compare token ids; where it
promises the law, or nothing, and a temperature is above 0, test the distribution of what it draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence as Many
from dataclasses import dataclass

import torch

from paceline.engine.engine import RequestError
from paceline.engine.law import FALSE_ALARM, Draws, Fit, draws, fit, sequence_of
from paceline.engine.llm import LLM, Completion, Prompt
from paceline.engine.small_law import SmallFit, small_fit, small_kinds
from paceline.errors import PacelineError
from paceline.noise import gumbel
from paceline.params import SamplingParams
from paceline.registry import VERIFIERS
from paceline.sampling import Context, target_scores
from paceline.verifiers.base import Exactness

NEAR_TIE = 1e-5
"""On the transformers backend a row's last bits may depend on the shape of its forward; there a smaller gap counts as a near tie.
Elsewhere there is none: another token is a fault."""


@dataclass(frozen=True)
class Divergence:
    """Where two runs diverge: index among the generated tokens, both tokens (-1: that run had ended), the gap between their
    scores (noised where sampled), and whether it is so small that the shape of a forward may have decided."""

    position: int
    plain: int
    speculative: int
    logit_gap: float
    near_tie: bool


@dataclass(frozen=True)
class Comparison:
    """One prompt at one temperature, decoded twice."""

    prompt: Prompt
    temperature: float
    plain: Completion
    speculative: Completion
    divergence: Divergence | None


Row = Comparison | Draws


def examine(llm: LLM, draft: str, prompts: Many[Prompt], settings: Many[SamplingParams]) -> Iterator[Row]:
    """Check each of these parameters by the test that suits what the verifier of `llm` keeps there. Raises RequestError, before a
    token is decoded, where the verifier is lossy and that was not allowed, and where a prompt cannot be served."""
    forms = [llm.check_exactness(params) for params in settings]
    for params in settings:
        _check_prompts(llm, prompts, params)
    for params, kept in zip(settings, forms, strict=True):
        if params.temperature == 0.0 or kept is Exactness.TEXT:
            yield from compare(llm, draft, prompts, params)
        else:
            llm.use(draft)
            yield from draws(llm, prompts, params)


def _check_prompts(llm: LLM, prompts: Many[Prompt], params: SamplingParams) -> None:
    """Raises RequestError where the grammar cannot be used, or one of the prompts, which it names, would be refused."""
    llm.engine.check_grammar(params)
    for number, prompt in enumerate(prompts, 1):
        try:
            llm.engine.abort(llm.engine.add(llm.encode(prompt), params))
        except PacelineError as error:
            raise RequestError(f"prompt {number} of {len(prompts)}, {prompt[:30]!r}: {error}") from error


def compare(llm: LLM, draft: str, prompts: Many[Prompt], params: SamplingParams) -> Iterator[Comparison]:
    """Decode every prompt plainly, then with `draft`, under the same seed (0 unless given). Leaves `llm` with that drafter."""
    if params.seed is None:
        params = params.model_copy(update={"seed": 0})
    llm.use("none", verify="match")
    plain = [llm.generate(prompt, params)[0] for prompt in prompts]
    llm.use(draft)
    for prompt, one in zip(prompts, plain, strict=True):
        other = llm.generate(prompt, params)[0]
        yield Comparison(prompt, params.temperature, one, other, _divergence(llm, prompt, params, one, other))


def _divergence(
    llm: LLM, prompt: Prompt, params: SamplingParams, plain: Completion, speculative: Completion
) -> Divergence | None:
    left, right = plain.token_ids, speculative.token_ids
    if left == right:
        return None
    at = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    ours, theirs = (ids[at] if at < len(ids) else -1 for ids in (left, right))
    gap = float("inf")
    if ours >= 0 and theirs >= 0:
        sequence = sequence_of(llm, prompt, params, plain.seed)
        sequence.commit(tuple(left[:at]), ("",) * at)
        logits = llm.target.logits_after([(sequence, tuple(sequence.tokens))], llm.target.new_cache())[0]
        pair = torch.tensor([ours, theirs])
        scores = target_scores(logits, Context(sequence)).cpu()[pair].double()
        if params.temperature > 0:
            scores += gumbel(sequence.seed, len(sequence.tokens), pair)
        gap = float((scores[0] - scores[1]).abs())
    return Divergence(at, ours, theirs, gap, gap < NEAR_TIE and not llm.target.batch_invariant)


def law_of(rows: Many[Row]) -> Fit | None:
    """How well the drawn tokens fit the target's law; None where only texts were compared."""
    drawn = [row for row in rows if isinstance(row, Draws)]
    return fit(drawn) if drawn else None


def small_fits(llm: LLM) -> Iterator[SmallFit]:
    """Test a user's own verifier, kind by kind, on drafts whose law is known exactly. For the package's verifiers, unit tests
    enumerate all outcomes."""
    verifier = llm.engine.speculative.verifier
    kinds = small_kinds(verifier) if verifier.name not in {*VERIFIERS} else []
    for kind in kinds:
        yield small_fit(verifier, kind, FALSE_ALARM / len(kinds))


def verdict(rows: Many[Row], small: Many[SmallFit] = (), drafts: bool = True) -> str:
    """`lossless`, `not lossless`, or `inconclusive`, with the reason in `doubt`. small: from `small_fits`. drafts: False for a
    drafter that never drafts, so that nothing accepted is no doubt."""
    law = law_of(rows)
    if any(not divergence.near_tie for divergence in _parted(rows)) or (law is not None and not law.holds):
        return "not lossless"
    if not all(one.holds for one in small):
        return "not lossless"
    return "lossless" if doubt(rows, drafts) is None else "inconclusive"


def doubt(rows: Many[Row], drafts: bool = True) -> str | None:
    """Why rows without a fault do not show that speculation is lossless, in a sentence; None where they do. drafts: as for
    `verdict`."""
    if any(row.speculative.keeps == "nothing" for row in rows):
        return "this verifier promises nothing for these drafts: what it kept here it may not keep elsewhere"
    if _parted(rows):
        return "texts part where two tokens are all but equally likely, and nowhere else"
    counts: dict[float, tuple[int, int]] = {}
    for row in rows:
        drafted, accepted = counts.get(row.temperature, (0, 0))
        count = row.speculative.speculation
        counts[row.temperature] = drafted + count.draft_tokens, accepted + count.accepted_tokens
    if drafts and not any(accepted for _, accepted in counts.values()):
        return "nothing that was drafted was accepted, so nothing was put to the test"
    for temperature, (drafted, accepted) in counts.items():
        if drafts and not accepted:
            what = "nothing that was drafted was accepted" if drafted else "nothing was drafted"
            return f"at temperature {temperature:g} {what}, so nothing was put to the test there"
    law = law_of(rows)
    if law is not None and law.is_wide:
        return f"{law.tokens} drawn tokens refuse hardly any verifier: raise max-tokens, or give more prompts"
    return None


def _parted(rows: Many[Row]) -> list[Divergence]:
    return [row.divergence for row in rows if isinstance(row, Comparison) and row.divergence is not None]
