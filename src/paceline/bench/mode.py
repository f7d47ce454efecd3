"""Mode: a draft under a rule and a policy, as one run names it, records it and hands it to `paceline generate`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path

from paceline.bench.ours import PLAIN
from paceline.bench.settings import Settings
from paceline.compose import spelled_out, usual_policy


@dataclass(frozen=True)
class Mode:
    """name: what the rows of a record call it. draft: as it was asked for. spec: what that stands for; the same, but for `auto`.
    verify, policy: those asked for, or what is used where none is."""

    name: str
    draft: str
    spec: str
    verify: str = "match"
    policy: str = "fixed"

    @classmethod
    def of(cls, draft: str, verify: str | None, policy: str | None, source: str) -> Mode:
        """source: the model for which `auto` stands for something."""
        name = ", ".join(part for part in (draft, verify, policy) if part)
        spec = spelled_out(draft, source)
        return cls(name, draft, spec, cls.verify if verify is None else verify, policy or usual_policy(draft))

    def recorded(self) -> dict[str, str]:
        """What its name is joined of. Not the spec of `auto`: a record tells it once, without the folders of this machine."""
        return {"draft": self.draft, "verify": self.verify, "policy": self.policy}

    def options(self) -> list[str]:
        """Of the command line of `paceline generate`; a value that begins with a dash is one too."""
        return [f"--draft={self.spec}", f"--verify={self.verify}", f"--policy={self.policy}"]


PLAIN_MODE = Mode(PLAIN, "none", "none")


def modes_of(settings: Settings, source: Path) -> list[Mode]:
    """Every draft of a run under each of its rules and policies, but for none at all."""
    pairs = [*product(settings.verifiers, settings.policies)]
    return [Mode.of(draft, *pair, str(source)) for draft in settings.drafts if draft != "none" for pair in pairs]
