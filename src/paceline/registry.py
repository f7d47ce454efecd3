"""The registries: a method's name maps to the module that holds it, imported only when it is asked for.

One method is one file and one row here. The names on the command line, the generated documentation and the cross-product test
are read from these tables; a method's description is read from its module's docstring.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location
from os.path import abspath, basename, isdir, isfile
from pathlib import Path
from traceback import walk_tb
from types import ModuleType

from paceline.errors import PacelineError

AUTO = "auto"
"""The draft that suits the model. It names no single method, so it cannot be combined with others."""
_EMBEDDED = Path(__file__).with_name("weights")
"""A folder for each model that is shipped."""


class UnknownMethod(PacelineError):
    """An unknown drafter, verifier or policy (the message names the nearest, or all), or a user's own file that cannot be
    imported or built."""


def suggestion(name: str, names: Iterable[str]) -> str:
    """A suggestion for a name that is none of these: the nearest one, ignoring case, or else all of them."""
    lowered = {one.lower(): one for one in names}
    near = get_close_matches(name.lower(), lowered, 1)
    if near:
        return f"the nearest is '{lowered[near[0]]}'"
    return f"choose from {', '.join(lowered.values())}" if lowered else "there are none"


def raised(error: BaseException, file: str) -> str:
    """An exception's class and message on one line, and the line of `file` that led to it, if one did."""
    message = next(iter(str(error).splitlines()), "")
    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == abspath(file)]
    place = f", at {basename(file)}:{lines[-1]}" if lines else ""
    return f"{type(error).__name__}{message and f': {message}'}{place}"


@dataclass(frozen=True)
class Row:
    """module: where the method lives.

    example, more: specs that tests run; `{draft}` stands for a small model's directory, `{datastore}` for a datastore's.
    """

    module: str
    example: str
    more: tuple[str, ...] = ()

    @property
    def examples(self) -> tuple[str, ...]:
        """All specs that tests run."""
        return (self.example, *self.more)

    @property
    def is_own(self) -> bool:
        """Whether it is a user's own file or module."""
        return _is_own(self.module)

    def load(self) -> ModuleType:
        """Import the module. Raises UnknownMethod where a user's own cannot be imported or holds no method."""
        if not self.is_own:
            return importlib.import_module(self.module)
        if self.module.endswith(".py") and not isfile(self.module):
            raise UnknownMethod(f"there is no file '{self.module}'")
        try:
            module = _of_file(Path(self.module)) if self.module.endswith(".py") else importlib.import_module(self.module)
        # a user's code may raise anything
        except (Exception, SystemExit) as error:
            raise UnknownMethod(f"'{self.module}' cannot be imported ({raised(error, self.module)})") from error
        for name in ("Options", "build"):
            if not hasattr(module, name):
                raise UnknownMethod(f"'{self.module}' holds no method: it has no '{name}'; docs/drafters.md shows one")
        return module


def _is_own(name: str) -> bool:
    """Whether a name is that of a Python file, or of a module outside of the package: registered names have no dots."""
    is_module = "." in name and all(part.isidentifier() for part in name.split("."))
    return name.endswith(".py") or (is_module and not name.startswith("paceline."))


def _is_model(name: str) -> bool:
    """Whether a name is that of a model, not of a Python file: a directory, a model on the Hub, or an embedded one."""
    return not name.endswith(".py") and ("/" in name or isdir(name) or isdir(_EMBEDDED / name))


_READ: dict[str, int] = {}
"""Module name -> modification time, in nanoseconds, of its file when it was read."""


def _of_file(file: Path) -> ModuleType:
    """The module of a file; the same object until the file is modified."""
    name = f"paceline_own_{file.stem}_{sha256(str(file.resolve()).encode()).hexdigest()[:8]}"
    written = file.stat().st_mtime_ns
    if name not in sys.modules or _READ.get(name) != written:
        _READ[name] = written
        spec = spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        # dataclasses and pydantic look up their module while it is executed
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


class Registry(Mapping[str, Row]):
    """An immutable table of methods of one family, e.g. "drafter". also: further names that it may suggest.

    Beside its own rows it returns one for the name of any Python file or module of a user's own, such as `./latest.py` or
    `mine.latest`.
    """

    def __init__(self, family: str, rows: Mapping[str, Row], also: tuple[str, ...] = ()) -> None:
        self.family, self._rows, self._also = family, dict(rows), also

    def __getitem__(self, name: str) -> Row:
        if name not in self._rows:
            if self.family == "drafter" and _is_model(name):
                hint = f"a smaller model drafts as 'model:{name}' or '{AUTO}:{name}'"
                if isfile(f"{name}.py"):
                    hint = f"a file of your own is named in full, '{name}.py'"
                raise UnknownMethod(f"'{name}' names no drafter: {hint}")
            if _is_own(name):
                return Row(name, name)
            other = next((one.family for one in (DRAFTERS, VERIFIERS, POLICIES) if name in one._rows), None)
            if other is not None:
                raise UnknownMethod(f"'{name}' is a {other}, and no {self.family}")
            raise UnknownMethod(f"there is no {self.family} '{name}'; {suggestion(name, (*self._also, *self._rows))}")
        return self._rows[name]

    def __iter__(self):
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


DRAFTERS = Registry(
    "drafter",
    {
        "none": Row("paceline.drafters.none", "none"),
        "unigram": Row("paceline.drafters.unigram", "unigram:width=2"),
        "bigram": Row("paceline.drafters.bigram", "bigram"),
        "ngram": Row("paceline.drafters.ngram", "ngram:max=3,min=1"),
        "grammar": Row("paceline.drafters.grammar", "grammar:depth=8"),
        "reference": Row("paceline.drafters.reference", "reference"),
        "suffix": Row("paceline.drafters.suffix", "suffix:past=400,nodes=8"),
        "datastore": Row("paceline.drafters.datastore", "datastore:{datastore},nodes=8,depth=5"),
        "jacobi": Row("paceline.drafters.jacobi", "jacobi:4"),
        "lookahead": Row("paceline.drafters.lookahead", "lookahead:3,3,2"),
        "recycle": Row("paceline.drafters.recycle", "recycle:nodes=6"),
        "model": Row(
            "paceline.drafters.model",
            "model:{draft},width=2",
            ("model:{draft},tree=static,nodes=8,depth=3", "model:{draft},tree=dynamic,nodes=8,width=3"),
        ),
    },
    (AUTO,),
)
VERIFIERS = Registry(
    "verifier",
    {
        "match": Row("paceline.verifiers.match", "match"),
        "rejection": Row("paceline.verifiers.rejection", "rejection"),
        "multi-round": Row("paceline.verifiers.multi_round", "multi-round:replacement=without"),
        "k-seq": Row("paceline.verifiers.k_seq", "k-seq"),
        "spechub": Row("paceline.verifiers.spechub", "spechub"),
        "block": Row("paceline.verifiers.block", "block"),
        "lenient": Row("paceline.verifiers.lenient", "lenient:lenience=0.5"),
        "typical": Row("paceline.verifiers.typical", "typical:epsilon=0.09"),
        "relaxed": Row("paceline.verifiers.relaxed", "relaxed:top=3,gap=1"),
        "contrastive": Row("paceline.verifiers.contrastive", "contrastive:alpha=0.1,beta=0.5"),
    },
)
POLICIES = Registry(
    "policy",
    {
        "fixed": Row("paceline.policies.fixed", "fixed"),
        "adaptive": Row("paceline.policies.adaptive", "adaptive"),
        "bass": Row("paceline.policies.bass", "bass:first=4"),
        "confidence": Row("paceline.policies.confidence", "confidence:0.5"),
    },
)
CACHES = Registry(
    "cache",
    {
        "dense": Row("paceline.cache.dense", "dense"),
        "panels": Row("paceline.cache.panels", "panels"),
        "paged": Row("paceline.cache.paged", "paged"),
        "stateful": Row("paceline.cache.stateful", "stateful"),
        "replay": Row("paceline.cache.replay", "replay"),
    },
)
