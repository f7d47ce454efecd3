"""Mode: a draft under a verifier and a policy, with its name in a run, its record, and its options for `paceline generate`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from paceline.bench.ours import PLAIN
from paceline.bench.settings import Settings
from paceline.compose import check_words, spelled_out, usual_policy
from paceline.models.embedded import draft_of
from paceline.models.load import resolve
from paceline.spec import Method, SpecError, methods_of, parse


@dataclass(frozen=True)
class Mode:
    """name: its name in the rows of a record. draft: as given by the user. spec: the same, with `auto` resolved. verify, policy:
    as given by the user, or the defaults."""

    name: str
    draft: str
    spec: str
    verify: str = "match"
    policy: str = "fixed"

    @classmethod
    def of(cls, draft: str, verify: str | None, policy: str | None, source: str) -> Mode:
        """source: the model for which `auto` is resolved."""
        name = ", ".join(part for part in (draft, verify, policy) if part)
        spec = spelled_out(draft, source)
        return cls(name, draft, spec, cls.verify if verify is None else verify, policy or usual_policy(draft))

    def recorded(self) -> dict[str, str]:
        """The mode in a record. Not the spec of `auto`, which a record has once, without the folders of this machine."""
        return {"draft": self.draft, "verify": self.verify, "policy": self.policy}

    def options(self) -> list[str]:
        """Options for `paceline generate`, joined by "=", since a value may begin with a dash."""
        return [f"--draft={self.spec}", f"--verify={self.verify}", f"--policy={self.policy}"]


PLAIN_MODE = Mode(PLAIN, "none", "none")


def modes_of(settings: Settings, source: Path) -> list[Mode]:
    """Every draft of a run, except "none", under each of its verifiers and policies."""
    pairs = [*product(settings.verifiers, settings.policies)]
    return [Mode.of(draft, *pair, str(source)) for draft in settings.drafts if draft != "none" for pair in pairs]


def check_modes(settings: Settings) -> None:
    """Check the specs of the modes before a model is found, grown or loaded. Raises SpecError or UnknownMethod."""
    for draft in settings.drafts:
        for verify, policy in product(settings.verifiers, settings.policies) if draft != "none" else ():
            check_words(draft, Mode.verify if verify is None else verify, policy or None)


def check_grown(modes: Iterable[Mode], source: Path) -> None:
    """Raises SpecError if a mode has `model` without a path and the source has a shipped draft: that draft is found by the
    source's folder, and a grown model has a different one."""
    draft = draft_of(source)
    if draft is not None and any(_path(method) is None for mode in modes for method in _models(mode)):
        raise SpecError(f"'model' needs path beside --grow: it is model:{draft.name} that goes with '{source.name}'")


def draft_model(modes: Iterable[Mode], source: Path) -> Path | None:
    """The folder of the first model that drafts in any of these modes; otherwise of the draft shipped for the model, or None.

    Raises ModelError if a named model does not exist.
    """
    for path in (_path(method) for mode in modes for method in _models(mode)):
        if path is not None:
            return resolve(path)
    return draft_of(source)


def _models(mode: Mode) -> list[Method]:
    return [method for method in methods_of(parse(mode.spec)) if method.name == "model"]


def _path(model: Method) -> str | None:
    return model.arguments[0] if model.arguments else model.options.get("path")
