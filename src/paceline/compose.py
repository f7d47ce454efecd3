"""Compose: from a parsed spec to the drafter it names, and from names to verifiers and policies.

Here a combination that is not lossless is refused, unless the user asked for it.
"""

from __future__ import annotations

from typing import Any

from paceline.cache.base import Branching
from paceline.drafters.base import Drafter, Surroundings
from paceline.drafters.merge import MergedDrafter
from paceline.models.embedded import draft_of
from paceline.params import SamplingParams
from paceline.policies.base import Policy
from paceline.registry import DRAFTERS, POLICIES, VERIFIERS, Registry
from paceline.spec import Combination, Spec, SpecError, bind, parse
from paceline.verifiers.base import Exactness, Verifier


def automatic(model_path: str) -> str:
    """The spec `auto` stands for: the embedded draft of this target merged with n-gram lookup, else n-gram lookup alone."""
    draft = draft_of(model_path)
    return f'ngram+model:"{draft}"' if draft else "ngram"


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


def _build(spec: Spec, surroundings: Surroundings) -> Drafter:
    if isinstance(spec, Combination):
        if spec.sign == "+":
            return MergedDrafter([_build(part, surroundings) for part in spec.parts])
        kind = "cascades ('a^b')" if spec.sign == "^" else "approximations ('x@y')"
        raise SpecError(f"{kind} are not built yet")
    method = DRAFTERS[spec.name].load()
    return method.build(bind(spec, method.Options), surroundings)


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
