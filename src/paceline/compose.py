"""Compose: from a parsed spec to the drafter it names, and from names to verifiers and policies.

Drafts that the target cannot verify are refused here, and `exactness` says what a combination keeps of plain decoding.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace
from typing import TypeVar

import torch

from paceline import own_files
from paceline.cache.base import Branching
from paceline.cascade import Cascade
from paceline.drafters.base import Drafter, Surroundings
from paceline.drafters.merge import MergedDrafter
from paceline.kernels.precompiled import EMBEDDED_DRAFT_WEIGHTS
from paceline.models.base import WEIGHTS, LanguageModel, ModelError
from paceline.models.embedded import draft_of
from paceline.models.load import packs_weights
from paceline.models.tokenizer import Tokenizer
from paceline.params import SamplingParams
from paceline.policies.base import Policy
from paceline.registry import AUTO, DRAFTERS, POLICIES, VERIFIERS, Registry
from paceline.sequence import Sequence
from paceline.spec import Combination, Method, Spec, SpecError, bind, methods_of, parse
from paceline.step import Feed, Step
from paceline.tree import DraftTree
from paceline.verifiers.base import Exactness, Verifier

Single = TypeVar("Single", Verifier, Policy)


def automatic(model_path: str, draft_path: str = "") -> str:
    """`auto`: n-gram lookup, plus the draft model embedded for this target or, if there is none, token recycling.

    `auto:PATH` names a smaller model of your own to draft with instead. The policy decides whether a model drafts and how deep;
    eight levels are more than a small machine ever asks for. Rows are nearly free on a GPU, so lookups and recycled trees are
    larger there: with 32 recycled nodes instead of 8 the embedded model emits a quarter more tokens per step, and rewriting
    files with edits takes an eighth fewer steps. A draft may be approximate, so your own model is held in int8 if its weights
    can be packed: half as many bytes to read, and almost the same tokens. The embedded draft model is held in w8a8, which reads
    prompts faster and has the same acceptance; whether this is so for other models is not known.

    Source: our own choice of methods that are listed here.
    Proposals: those of its parts
    Taps: none
    Branching: REPLAY
    Trained: no (any checkpoint)
    Cost: the sum of its parts, of which the policy runs those that are worth their time
    """
    draft = draft_path or draft_of(model_path)
    found, recycled = ("ngram:depth=32,nodes=32", "recycle:nodes=32") if torch.cuda.is_available() else ("ngram", "recycle")
    if not draft:
        return f"{found}+{recycled}"
    weights = "int8" if draft_path else EMBEDDED_DRAFT_WEIGHTS
    return f'{found}+model:"{draft}",depth=8{f"@{weights}" if packs_weights(draft) else ""}'


def _smaller(draft: str) -> str | None:
    """The path of the smaller model that an `auto` spec names, "" for none; None for any other draft."""
    spec = parse(draft)
    if not isinstance(spec, Method) or spec.name != AUTO:
        return None
    if spec.options or len(spec.arguments) > 1:
        raise SpecError(f"'{AUTO}' takes no options: spell it out, as in 'ngram+model:PATH,depth=4', to choose them yourself")
    return spec.arguments[0] if spec.arguments else ""


def usual_policy(draft: str) -> str:
    """The default policy for a user's `draft`. Raises SpecError where it cannot be parsed."""
    return "adaptive" if _smaller(draft) is not None else "fixed"


def spelled_out(draft: str, model_path: str) -> str:
    """The spec that a user's `draft` stands for: what `auto` is for this target, or itself.

    Raises SpecError where `auto` is combined with other methods or given options.
    """
    smaller = _smaller(draft)
    if smaller is not None:
        return automatic(model_path, smaller)
    if any(method.name == AUTO for method in methods_of(parse(draft))):
        reason = f"'{AUTO}' stands alone, or names a smaller model as in '{AUTO}:PATH'"
        raise SpecError(f"{reason}; for this model it is '{automatic(model_path)}'")
    return draft


def check_words(draft: str, verify: str, policy: str | None = None, others: Many[str] = ()) -> None:
    """Check the names, options and option values in these specs, raising what building them would raise. It needs no model, so it
    can run before one is loaded. policy: None for the default. others: specs of further drafters. Raises SpecError or
    UnknownMethod."""
    build_verifier_and_policy(draft, verify, policy)
    for spec in (draft, *others):
        _check(parse(spec))


def _check(spec: Spec) -> None:
    if isinstance(spec, Combination):
        if spec.sign == "@":
            _weights_format(spec.parts)
        for part in spec.parts[:1] if spec.sign == "@" else spec.parts:
            _check(part)
        return
    if spec.name == AUTO:
        # what it stands for depends on the target
        return
    row = DRAFTERS[spec.name]
    if row.is_own:
        own_files.bound(row, spec)
    else:
        bind(spec, row.load().Options)


class IfItFits(str):
    """The spec of a drafter that the user did not name: where it does not fit the target or the verifier, it is left out."""


class Misfit(SpecError):
    """A spec is valid, but not for this target or under this verifier. reason: the message without the suggested way
    out."""

    def __init__(self, reason: str, way_out: str) -> None:
        super().__init__(f"{reason}: {way_out}")
        self.reason = reason


def build_drafter(spec: str, surroundings: Surroundings) -> Drafter:
    """Build the drafter of a spec string. Raises SpecError (also its subclass Misfit) or UnknownMethod, with one sentence."""
    drafter = _build(parse(spec), surroundings)
    target = surroundings.target
    if target.branching is Branching.NONE and drafter.budget.nodes > 0:
        raise Misfit(f"'{target.name}' cannot take a token back", "nothing can draft for it but 'none'")
    for part in drafter.parts:
        if target.branching < part.branching:
            raise Misfit(f"'{part.name}' drafts trees, and '{target.name}' can verify only chains", "try 'ngram'")
    if surroundings.amateur and not drafter.amateur:
        reason = f"this verifier contrasts the target with a model that drafts, and '{drafter.name}' is none"
        raise Misfit(reason, "try 'model:PATH'")
    if drafter.taps:
        _try_taps(drafter, target)
    return drafter


def build_drafters(spec: str, extra: Many[str], offer: Many[str], surroundings: Surroundings) -> tuple[Drafter, frozenset[str]]:
    """The drafter of `spec` merged with those of `extra` and `offer`; and the names of the offered ones that were added.

    Drafters that the spec already names are not added again, and specs in `extra` and `offer` of type `IfItFits` are left out
    where they do not fit. Raises SpecError where requested trees would be cut to chains or two different drafters have the same
    name; UnknownMethod.
    """
    drafter = build_drafter(spec, surroundings)
    _check_trees(drafter, surroundings.target)
    extras, named = dict[str, Drafter](), {part.name for part in drafter.parts}
    for said, built in _fitting(extra, surroundings):
        for part in built.parts:
            if part.name not in named and part.name not in extras:
                extras[part.name] = part
            elif _is_another(said, part, spec):
                raise SpecError(f"'{said}' cannot be an extra drafter: there is another one of the name '{part.name}'")
    offers = _fitting(offer, surroundings)
    if not extras and not offers:
        return drafter, frozenset()
    # extra drafters have more information, so they draft first
    parts = extras | {part.name: part for part in drafter.parts}
    offered: dict[str, Drafter] = {}
    for said, part in offers:
        if part.name not in parts and part.name not in offered:
            offered[part.name] = part
        elif _is_another(said, part, spec):
            raise SpecError(
                f"'{said}' cannot be offered: another drafter of the name '{part.name}' is there, from --draft or offered too"
            )
    merged = MergedDrafter([*parts.values(), *offered.values()])
    merged.name = drafter.name
    return merged, frozenset(offered)


def _is_another(said: str, part: Drafter, spec: str) -> bool:
    """Whether the spec `said`, from which `part` was built, means another drafter than the one already there by that name."""
    if isinstance(said, IfItFits) or said.strip() == part.name:
        return False
    named = parse(spec)
    return parse(said) not in (named.parts if isinstance(named, Combination) and named.sign == "+" else (named,))


def _fitting(specs: Many[str], surroundings: Surroundings) -> list[tuple[str, Drafter]]:
    """The specs that fit, each with its drafter. Raises SpecError for one that does not fit, unless it is an `IfItFits`."""
    found = []
    for spec in specs:
        try:
            drafter = build_drafter(spec, surroundings)
            _check_trees(drafter, surroundings.target)
        except Misfit as misfit:
            if isinstance(spec, IfItFits):
                continue
            raise SpecError(f"{misfit.reason}: leave out '{spec}'") from None
        found.append((spec, drafter))
    return found


def _check_trees(drafter: Drafter, target: LanguageModel) -> None:
    """Raise Misfit where the user asked for trees and the target can verify only chains."""
    for part in drafter.parts:
        if part.trees_by and target.branching < Branching.TREE:
            reason = f"'{part.name}' is asked for trees, and '{target.name}' can verify only chains"
            raise Misfit(reason, f"leave out {part.trees_by}")


def _try_taps(drafter: Drafter, target: LanguageModel) -> None:
    """Raise Misfit where a forward of the target cannot return the hidden states that a drafter needs.

    Only the backend can tell, so one token is fed to see whether it raises.
    """
    first = Sequence(0, (0,), SamplingParams(), seed=0)
    step, cache = Step.of([Feed(first, 0, (0,), DraftTree.root(0))]), target.new_cache()
    cache.stage(step)
    try:
        target.score(step, cache, drafter.taps)
    except ModelError as error:
        raise Misfit(f"'{drafter.name}' reads hidden states that '{target.name}' cannot show ({error})", "try 'ngram'") from None
    finally:
        cache.release(0)


def _build(spec: Spec, surroundings: Surroundings) -> Drafter:
    if isinstance(spec, Combination):
        if spec.sign == "+":
            return MergedDrafter([_build(part, surroundings) for part in spec.parts])
        if spec.sign == "^":
            return _cascaded(spec.parts, surroundings)
        return with_weights(spec.parts, surroundings)
    if spec.name == AUTO:
        raise SpecError(f"'{AUTO}' stands alone, as the whole of a draft")
    row = DRAFTERS[spec.name]
    if row.is_own:
        return own_files.built(row, spec, Drafter, surroundings)
    method = row.load()
    return method.build(bind(spec, method.Options), surroundings)


def with_weights(parts: Many[Spec], surroundings: Surroundings) -> Drafter:
    """`x@y`: drafter x with the weights of its draft model held in format y, such as `model:PATH@int8`.

    A draft need not be exact, and weights of fewer bytes take less time to read. y is one of the formats of `--weights`.

    Source: weights in fewer bits, for draft models only; the formats are those of `--weights`.
    Proposals: those of x
    Taps: those of x
    Branching: what x needs
    Trained: no (any checkpoint)
    Cost: that of x, with fewer bytes of weights to read
    """
    drafter, weights = parts[0], _weights_format(parts)
    loaded: list[str] = []

    def load(path: str, _: str | None = None) -> tuple[LanguageModel, Tokenizer]:
        # a format that x asks for is not the one that the user named
        loaded.append(path)
        return surroundings.load(path, weights)

    built = _build(drafter, replace(surroundings, load=load))
    if not loaded:
        raise SpecError(f"in 'x@y' x is a model that drafts, as in 'model:PATH@int8'; '{built.name}' is none")
    return built


def _weights_format(parts: Many[Spec]) -> str:
    """The weight format y of `x@y`. Raises SpecError where it is no weight format, or there are several."""
    _, *formats = parts
    names = [form.name if isinstance(form, Method) and not form.arguments and not form.options else "" for form in formats]
    if len(names) > 1 or names[0] not in WEIGHTS:
        raise SpecError(f"in 'x@y' y is one weight format, {', '.join(WEIGHTS)}, as in 'model:PATH@int8'")
    return names[0]


def _cascaded(parts: Many[Spec], surroundings: Surroundings) -> Drafter:
    """`a^b`: a drafts for the model of b, and both together for the target."""
    *ahead, last = parts
    if not ahead:
        return _build(last, surroundings)
    inside: list[Drafter] = []

    def load(path: str, *weights: str) -> tuple[LanguageModel, Tokenizer]:
        model, tokenizer = surroundings.load(path, *weights)
        drafter = _cascaded(ahead, Surroundings(model, tokenizer, surroundings.load))
        _check_trees(drafter, model)
        if model.branching < max(drafter.branching, Branching.REPLAY):
            raise SpecError(f"'{path}' cannot verify what '{drafter.name}' drafts for it")
        inside.append(drafter)
        return Cascade(model, drafter, build_verifier("match"), build_policy("fixed")), tokenizer

    outer = _build(last, replace(surroundings, load=load))
    if not inside:
        raise SpecError(f"in a cascade 'a^b' b is a model that drafts, as in 'ngram^model:PATH'; '{outer.name}' is none")
    outer.name = f"{inside[0].name}^{outer.name}"
    return outer


def build_verifier_and_policy(draft: str, verify: str, policy: str | None = None) -> tuple[Verifier, Policy]:
    """The verifier and the policy for a user's `draft`. policy: None for the default. Raises SpecError, also where the two cannot
    be combined, or UnknownMethod."""
    verifier, decides = build_verifier(verify), build_policy(usual_policy(draft) if policy is None else policy)
    if verifier.amateur and decides.name != "fixed":
        raise SpecError(f"'{verifier.name}' needs a draft in every step: leave out the policy '{decides.name}'")
    return verifier, decides


def build_verifier(spec: str) -> Verifier:
    """The verifier of a spec string, e.g. `typical:epsilon=0.1`. Raises SpecError or UnknownMethod."""
    return _single(VERIFIERS, spec, Verifier)


def build_policy(spec: str) -> Policy:
    """The policy of a spec string. Raises SpecError or UnknownMethod."""
    return _single(POLICIES, spec, Policy)


def _single(registry: Registry, spec: str, contract: type[Single]) -> Single:
    if spec == "":
        raise SpecError(f"the {registry.family} is an empty text: leave it out, or choose from {', '.join(registry)}")
    parsed = parse(spec)
    if isinstance(parsed, Combination):
        raise SpecError(f"a {registry.family} is a single method, not '{spec}'")
    row = registry[parsed.name]
    if row.is_own:
        return own_files.built(row, parsed, contract)
    method = row.load()
    return method.build(bind(parsed, method.Options))


def exactness(drafter: Drafter, verifier: Verifier, params: SamplingParams) -> Exactness | None:
    """What this combination keeps of plain decoding under these parameters; None where it keeps nothing."""
    kept = [verifier.exactness.get(kind) for kind in drafter.kinds]
    if not kept or None in kept:
        return None
    if params.temperature == 0.0:
        return Exactness.TEXT
    return Exactness.LAW if Exactness.LAW in kept else Exactness.TEXT
