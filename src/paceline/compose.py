"""Compose: from a parsed spec to the drafter it names, and from names to verifiers and policies.

Here a combination that is not lossless is refused, unless the user asked for it.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace
from typing import Any

from paceline.cache.base import Branching
from paceline.cascade import Cascade
from paceline.drafters.base import Drafter, Surroundings
from paceline.drafters.merge import MergedDrafter
from paceline.models.base import WEIGHTS, LanguageModel
from paceline.models.embedded import draft_of
from paceline.models.load import packs_weights
from paceline.models.tokenizer import Tokenizer
from paceline.params import SamplingParams
from paceline.policies.base import Policy
from paceline.registry import DRAFTERS, POLICIES, VERIFIERS, Registry
from paceline.spec import Combination, Method, Spec, SpecError, bind, parse
from paceline.verifiers.base import Exactness, Verifier


def automatic(model_path: str) -> str:
    """The spec `auto` stands for: the embedded draft of this target beside n-gram look-up, else n-gram look-up alone.

    How deep the draft goes, if it is made at all, is for the policy; eight levels are more than a small machine ever asks for.
    A draft is free to be an approximation, so it is held in int8 where weights are packed: half as much to read, and hardly
    another token.
    """
    draft = draft_of(model_path)
    held = "@int8" if packs_weights() else ""
    return f'ngram+model:"{draft}",depth=8{held}' if draft else "ngram"


def build_drafter(spec: str, surroundings: Surroundings) -> Drafter:
    """Build what a spec string names. Raises SpecError or UnknownMethod with one sentence."""
    drafter = _build(parse(spec), surroundings)
    target = surroundings.target
    if target.branching is Branching.NONE and drafter.budget.nodes > 0:
        raise SpecError(f"'{target.name}' cannot take a token back, so nothing can draft for it but 'none'")
    if target.branching < drafter.branching:
        raise SpecError(f"'{drafter.name}' drafts trees, and '{target.name}' can verify only chains: try 'ngram'")
    if surroundings.amateur and not drafter.amateur:
        raise SpecError(
            f"this rule contrasts the target with a model that drafts, and '{drafter.name}' is none: try 'model:PATH'"
        )
    return drafter


def build_drafters(spec: str, beside: Many[str], offer: Many[str], surroundings: Surroundings) -> tuple[Drafter, frozenset[str]]:
    """What `spec` names, what drafts beside it, and what is offered; with it the names of those offered.

    Drafters that the spec names already are not built again. Raises SpecError or UnknownMethod.
    """
    drafter = build_drafter(spec, surroundings)
    if not beside and not offer:
        return drafter, frozenset()
    # what drafts beside it knows more, and is asked first
    parts = {part.name: part for part in (*[build_drafter(one, surroundings) for one in beside], *drafter.parts)}
    offered = {part.name: part for part in [build_drafter(one, surroundings) for one in offer] if part.name not in parts}
    merged = MergedDrafter([*parts.values(), *offered.values()])
    merged.name = drafter.name
    return merged, frozenset(offered)


def _build(spec: Spec, surroundings: Surroundings) -> Drafter:
    if isinstance(spec, Combination):
        if spec.sign == "+":
            return MergedDrafter([_build(part, surroundings) for part in spec.parts])
        if spec.sign == "^":
            return _cascaded(spec.parts, surroundings)
        return _approximated(spec.parts, surroundings)
    method = DRAFTERS[spec.name].load()
    return method.build(bind(spec, method.Options), surroundings)


def _approximated(parts: Many[Spec], surroundings: Surroundings) -> Drafter:
    """`x@y`: the model that x drafts with, its weights held in the format y."""
    drafter, *formats = parts
    names = [form.name if isinstance(form, Method) and not form.arguments and not form.options else "" for form in formats]
    if len(names) > 1 or names[0] not in WEIGHTS:
        raise SpecError(f"an approximation 'x@y' is one format of weights so far, {', '.join(WEIGHTS)}, as in 'model:PATH@int8'")
    loaded: list[str] = []

    def load(path: str) -> tuple[LanguageModel, Tokenizer]:
        loaded.append(path)
        return surroundings.load(path, names[0])

    built = _build(drafter, replace(surroundings, load=load))
    if not loaded:
        raise SpecError(f"in an approximation 'x@y' x is a model that drafts, as in 'model:PATH@int8'; '{built.name}' is none")
    return built


def _cascaded(parts: Many[Spec], surroundings: Surroundings) -> Drafter:
    """`a^b`: a drafts for the model that b names, and both for the target."""
    *ahead, last = parts
    if not ahead:
        return _build(last, surroundings)
    inside: list[Drafter] = []

    def load(path: str, *weights: str) -> tuple[LanguageModel, Tokenizer]:
        model, tokenizer = surroundings.load(path, *weights)
        drafter = _cascaded(ahead, Surroundings(model, tokenizer, surroundings.load))
        if model.branching < max(drafter.branching, Branching.REPLAY):
            raise SpecError(f"'{path}' cannot verify what '{drafter.name}' drafts for it")
        inside.append(drafter)
        return Cascade(model, drafter, build_verifier("match"), build_policy("fixed")), tokenizer

    outer = _build(last, replace(surroundings, load=load))
    if not inside:
        raise SpecError(f"in a cascade 'a^b' b is a model that drafts, as in 'ngram^model:PATH'; '{outer.name}' is none")
    outer.name = f"{inside[0].name}^{outer.name}"
    return outer


def build_verifier(spec: str) -> Verifier:
    """The rule that a spec string names, e.g. `typical:epsilon=0.1`. Raises SpecError or UnknownMethod."""
    return _single(VERIFIERS, spec)


def build_policy(spec: str) -> Policy:
    """The policy that a spec string names. Raises SpecError or UnknownMethod."""
    return _single(POLICIES, spec)


def _single(registry: Registry, spec: str) -> Any:
    parsed = parse(spec)
    if isinstance(parsed, Combination):
        raise SpecError(f"a {registry.family} is a single method, not '{spec}'")
    method = registry[parsed.name].load()
    return method.build(bind(parsed, method.Options))


def exactness(drafter: Drafter, verifier: Verifier, params: SamplingParams) -> Exactness | None:
    """What this combination keeps of plain decoding under these parameters; None where it keeps nothing."""
    kept = [verifier.exactness.get(kind) for kind in drafter.kinds]
    if not kept or None in kept:
        return None
    if params.temperature == 0.0:
        return Exactness.TEXT
    return Exactness.LAW if Exactness.LAW in kept else Exactness.TEXT
