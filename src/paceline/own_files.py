"""Own files: users' own drafters, verifiers and policies, checked when they are built and at every call.

Every mistake in a user's method is reported in one sentence that names the file. What a file builds is checked, and its class is
then replaced by a subclass whose methods check what the user's return. Methods of the registries are never watched, so their
steps take no time for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence as Many
from contextlib import contextmanager
from inspect import getattr_static, signature
from numbers import Integral, Real
from types import ModuleType, new_class
from typing import Any, TypeVar

import torch
from pydantic import BaseModel

from paceline.budget import Budget
from paceline.cache.base import Branching
from paceline.drafters.base import Drafter, StatefulDrafter, Surroundings
from paceline.errors import PacelineError
from paceline.policies.base import Policy
from paceline.registry import AUTO, DRAFTERS, POLICIES, VERIFIERS, Registry, Row, UnknownMethod, raised
from paceline.sequence import Sequence
from paceline.shortage import memory_ended
from paceline.spec import Method, bind
from paceline.step import Verdict
from paceline.tree import DraftTree, Proposal
from paceline.verifiers.base import Exactness, Verifier


class OwnFileError(PacelineError):
    """A user's own drafter, verifier or policy raised an exception or returned something invalid. file: as its spec names it."""

    def __init__(self, file: str, mistake: str) -> None:
        super().__init__(f"'{file}': {mistake}")
        self.file = file


class _Watched:
    """Marks an object that a file built and whose methods check their return values."""

    __slots__ = ()


Part = TypeVar("Part", Drafter, Verifier, Policy)


def bound(row: Row, method: Method) -> BaseModel:
    """The options of a method in a file. Raises UnknownMethod where the file or its `Options` are invalid, SpecError where
    `Options` refuse the arguments."""
    file, module = row.module, row.load()
    if not (isinstance(module.Options, type) and issubclass(module.Options, BaseModel)):
        raise UnknownMethod(f"'{file}': its 'Options' are no pydantic model: begin them with 'class Options(BaseModel):'")
    with _blamed(file, module, "its 'Options'", UnknownMethod):
        return bind(method, module.Options)


def built(row: Row, method: Method, contract: type[Part], surroundings: Surroundings | None = None) -> Part:
    """What a file builds, watched from then on. contract: the class it must have. Raises UnknownMethod where it has another or
    cannot be built, SpecError where `Options` refuse the arguments."""
    file, module, options = row.module, row.load(), bound(row, method)
    arguments = () if surroundings is None else (surroundings,)
    with _blamed(file, module, "its 'build'", UnknownMethod):
        names = "options and surroundings" if arguments else "options alone"
        try:
            signature(module.build).bind(options, *arguments)
        except TypeError:
            raise UnknownMethod(f"'{file}' is no {_word(contract)}: the 'build' of one takes {names}") from None
        made = module.build(options, *arguments)
        if not isinstance(made, contract):
            raise UnknownMethod(f"'{file}' is no {_word(contract)}: its 'build' returned {_said(made)}")
        parts = {id(part): part for part in (made, *(made.parts if isinstance(made, Drafter) else ()))}
        for part in parts.values():
            _look_over(file, part)
            # registered methods that a file builds keep their names
            if part is made or not type(part).__module__.startswith("paceline."):
                _check_name(file, part, _TABLES[contract])
    answers = {**_ANSWERS[contract], **({"propose": _proposed(surroundings.target.vocab_size)} if surroundings else {})}
    with _blamed(file, module, "its 'build'", UnknownMethod):
        for part in parts.values():
            if not isinstance(part, _Watched):
                _watch(file, module, part, contract, answers)
    return made


def _word(contract: type) -> str:
    return contract.__name__.lower()


def _said(value: Any) -> str:
    """A returned value in few words: None, which of the three contracts it is an instance of, or its type."""
    words = ("None",) if value is None else tuple(f"a {_word(kind)}" for kind in _ANSWERS if isinstance(value, kind))
    return words[0] if words else f"something of the type '{type(value).__name__}'"


@contextmanager
def _blamed(file: str, module: ModuleType, what: str, kind: type[UnknownMethod] | None = None) -> Iterator[None]:
    """Reports exceptions raised within as one sentence, except those the engine handles. kind: its class, else OwnFileError."""
    try:
        yield
    # a user's code may raise anything
    except (Exception, SystemExit) as error:
        # where memory runs out in a step, the engine goes on with less
        if isinstance(error, PacelineError) or (kind is None and memory_ended(error)):
            raise
        mistake = f"{what} raised {raised(error, module.__file__ or file)}"
        raise (OwnFileError(file, mistake) if kind is None else kind(f"'{file}': {mistake}")) from error


_Check = tuple[Callable[[Any], Any], str]
"""Whether a value is valid, and what it should be."""
_NAME: _Check = (lambda name: isinstance(name, str) and name != "", "a text")
_FLAG: _Check = (lambda flag: isinstance(flag, bool), "True or False")
_MADE = "what super().__init__() makes: call it in its __init__"
_DECLARED: Mapping[type, Mapping[str, _Check]] = {
    Drafter: {
        "name": _NAME,
        "kinds": (
            lambda kinds: isinstance(kinds, frozenset) and bool(kinds) and _all(Proposal, kinds),
            "a frozenset of Proposal",
        ),
        "budget": (lambda budget: _is_budget(budget), "a Budget of whole numbers from 0 on"),
        "branching": (lambda branching: isinstance(branching, Branching), "a Branching"),
        "taps": (lambda taps: isinstance(taps, tuple) and _all(int, taps), "a tuple of layers, whole numbers"),
        "trees_by": (lambda option: isinstance(option, str), "a text"),
        "costly": _FLAG,
        "ends_early": _FLAG,
        "read_texts": (lambda number: isinstance(number, int) and 0 <= number < 1 << 63, "a whole number from 0 to 2^63"),
    },
    StatefulDrafter: {"_states": (lambda states: isinstance(states, dict), _MADE)},
    Verifier: {
        "name": _NAME,
        "exactness": (
            lambda kept: isinstance(kept, Mapping) and _all(Proposal, kept) and _all(Exactness, kept.values()),
            "a mapping from Proposal to Exactness",
        ),
        "prefers": (lambda kinds: isinstance(kinds, tuple) and _all(Proposal, kinds), "a tuple of Proposal"),
    },
    Policy: {"name": _NAME, **dict.fromkeys(("costs", "acceptance", "depth_acceptance"), (lambda made: made is not None, _MADE))},
}
"""Attributes that a drafter, a verifier and a policy must have."""


def _all(kind: type, values: Any) -> bool:
    return all(isinstance(value, kind) for value in values)


def _is_budget(budget: Any) -> bool:
    return isinstance(budget, Budget) and all(isinstance(n, Integral) and int(n) >= 0 for n in (budget.nodes, budget.depth))


def _look_over(file: str, part: Drafter | Verifier | Policy) -> None:
    """Raise UnknownMethod where an attribute that a part must have is missing or invalid."""
    for contract, declared in _DECLARED.items():
        for name, (fits, what) in declared.items() if isinstance(part, contract) else ():
            if not hasattr(part, name):
                raise UnknownMethod(f"'{file}': its {type(part).__name__} has no '{name}', {what}")
            if not fits(getattr(part, name)):
                raise UnknownMethod(f"'{file}': the '{name}' of its {type(part).__name__} is not {what}")


_TABLES: Mapping[type, Registry] = {Drafter: DRAFTERS, Verifier: VERIFIERS, Policy: POLICIES}


def _check_name(file: str, part: Drafter | Verifier | Policy, table: Registry) -> None:
    """Raise UnknownMethod where a part has the name of a registered method, or `auto`."""
    if part.name in {AUTO, *table}:
        mistake = f"the 'name' of its {type(part).__name__} is '{part.name}', as another {table.family} is called"
        raise UnknownMethod(f"'{file}': {mistake}: give it one of its own")


Answer = Callable[[Any, tuple[Any, ...], Any], str]
"""What is wrong with a return value, "" for nothing. Called with the part, the arguments, and the value."""


def _watch(file: str, module: ModuleType, part: Any, contract: type, answers: Mapping[str, Answer]) -> None:
    """Replace a part's class by a subclass in which every member of the contract that its author overrode is watched."""
    kind = type(part)
    members: dict[str, Any] = {"__slots__": (), "__module__": module.__name__, "__doc__": kind.__doc__}
    asked = [name for name in vars(contract) if name == "__call__" or not name.startswith("_")]
    for name in asked:
        theirs = getattr_static(kind, name)
        if theirs is getattr_static(contract, name) or not (callable(theirs) or isinstance(theirs, (property, staticmethod))):
            continue
        watched = _watched(file, module, name, answers.get(name), members)
        members[name] = property(watched) if isinstance(theirs, property) else watched
    # the members need the class itself for `super`
    members["made"] = made = new_class(kind.__name__, (kind, _Watched), exec_body=lambda space: space.update(members))
    # works even where its author restricts setting attributes
    object.__setattr__(part, "__class__", made)


def _watched(file: str, module: ModuleType, name: str, answer: Answer | None, scope: Mapping[str, Any]) -> Callable[..., Any]:
    """A watched method or property getter. scope: contains the class as `made` by the time of a call."""
    what = f"its '{name}'"

    def ask(self: Any, *arguments: Any, **named: Any) -> Any:
        texts = [(one, tuple(one.tokens)) for one in _sequences(arguments)]
        with _blamed(file, module, what):
            found = getattr(super(scope["made"], self), name)
            answered = found(*arguments, **named) if callable(found) else found
        for sequence, tokens in texts:
            if tuple(sequence.tokens) != tokens:
                sequence.tokens[:] = tokens
                raise OwnFileError(file, f"{what} wrote into 'tokens' of a sequence, which is the text itself")
        if answer is not None and (mistake := _mistaken(answer, module.__file__ or file, self, arguments, answered)):
            raise OwnFileError(file, f"{what} returned {mistake}")
        return answered

    return ask


def _sequences(arguments: tuple[Any, ...]) -> Many[Sequence]:
    """The sequences among a method's arguments, which are always its first one."""
    first = arguments[0] if arguments else ()
    return [one for one in (first if isinstance(first, (list, tuple)) else (first,)) if isinstance(one, Sequence)]


def _mistaken(answer: Answer, source: str, *asked: Any) -> str:
    """What is wrong with a return value that may contain anything. source: the file that returned it."""
    try:
        return answer(*asked)
    except (Exception, SystemExit) as error:
        if memory_ended(error):
            raise
        return f"what cannot be read: {raised(error, source)}"


def _one_each(kind: type, sequences: Many[Sequence], answered: Any) -> str:
    """What is wrong with a return value that should be a list with one instance of `kind` for each sequence."""
    if not isinstance(answered, (list, tuple)):
        return f"{_said(answered)}, not a list of one {kind.__name__} for each sequence"
    if len(answered) != len(sequences):
        return f"{len(answered)} for {len(sequences)} sequences, not one {kind.__name__} for each"
    wrong = next((one for one in answered if not isinstance(one, kind)), None) if answered else None
    if wrong is not None or None in answered:
        return f"a list with {_said(wrong)} in it, not one {kind.__name__} for each sequence"
    return ""


def _first(mistakes: Iterable[str]) -> str:
    return next(filter(None, mistakes), "")


def _proposed(vocab_size: int) -> Answer:
    """Checks drafts for a target of `vocab_size` tokens."""

    def judge(drafter: Drafter, arguments: tuple[Any, ...], trees: Any) -> str:
        sequences, budgets = arguments
        return _one_each(DraftTree, sequences, trees) or _first(
            _drafted(drafter, *one, vocab_size) for one in zip(sequences, budgets, trees, strict=True)
        )

    return judge


def _drafted(drafter: Drafter, sequence: Sequence, budget: Budget, tree: DraftTree, vocab_size: int) -> str:
    """What is wrong with the draft for one sequence."""
    try:
        # `chain` and `grown` make trees without checking them
        tree.__post_init__()
    except (ValueError, TypeError) as error:
        return f"no tree: {error}"
    if (token := _no_token(tree.tokens, vocab_size)) is not None:
        return token
    if tree.tokens[0] != sequence.root:
        return f"a tree with the root {tree.tokens[0]}, not with {sequence.root}, which is sequence.root"
    if not all(isinstance(held, Real) and 0 <= float(held) <= 1 for held in tree.confidences):
        return f"confidences that are not all from 0 to 1: {_listed(tree.confidences)}"
    if len(tree) > 1 and tree.kind not in drafter.kinds:
        return f"a tree of the kind {tree.kind.name}, which is none of its 'kinds': add it to them, or pass 'kind='"
    if tree.candidates - 1 > budget.nodes or tree.deepest > budget.depth:
        drafted = f"{tree.candidates - 1} nodes on {tree.deepest} levels"
        return f"a tree of {drafted}, for a budget of {budget.nodes} on {budget.depth}"
    names = {part.name for part in drafter.parts}
    if stranger := next((source for source in tree.sources[1:] if source not in names), None):
        return f"a node whose source is '{stranger}', not its name '{drafter.name}'"
    return _undrawn(tree, vocab_size) if tree.kind.drawn else ""


def _undrawn(tree: DraftTree, vocab_size: int) -> str:
    """What is wrong with the distributions that a drawn tree records."""
    for node in range(1, tree.candidates):
        row = tree.proposals.get((tree.parents[node], tree.sources[node]))
        if not isinstance(row, torch.Tensor) or row.shape != (vocab_size,):
            return f"drawn tokens without what they were drawn from: 'proposals' needs {vocab_size} numbers by (parent, source)"
        if not row[tree.tokens[node]] > 0.0:
            return f"the token {tree.tokens[node]}, to which its proposal gives no probability"
    return ""


def _no_token(tokens: Many[Any], vocab_size: int) -> str | None:
    """What is wrong with the first of `tokens` that is no token id; None where all are."""
    for token in tokens:
        if not isinstance(token, Integral):
            return f"{_said(token)} where a token id belongs"
        if not 0 <= int(token) < vocab_size:
            return f"the token {token}, of a vocabulary from 0 to {vocab_size - 1}"
    return None


def _listed(numbers: Many[Any]) -> str:
    """The first few of them."""
    return "none" if not numbers else ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")


def _judged(verifier: Verifier, arguments: tuple[Any, ...], verdicts: Any) -> str:
    """What is wrong with the verdicts on some trees."""
    sequences, trees, logits = arguments
    return _one_each(Verdict, sequences, verdicts) or _first(_accepted(*one) for one in zip(trees, logits, verdicts, strict=True))


def _accepted(tree: DraftTree, logits: torch.Tensor, verdict: Verdict) -> str:
    """What is wrong with one verdict. logits: float32 [N, V]."""
    tip = 0
    for node in verdict.path:
        if not isinstance(node, Integral) or not 0 < int(node) < tree.candidates or tree.parents[node] != tip:
            return f"the path {verdict.path}, where {node} is no child of {tip}"
        tip = node
    accepted = tuple(tree.tokens[node] for node in verdict.path)
    if (token := _no_token(verdict.tokens, logits.shape[-1])) is not None:
        return token
    if len(verdict.tokens) != len(accepted) + 1 or tuple(verdict.tokens[:-1]) != accepted:
        return f"the tokens {_listed(verdict.tokens)} for a path of {_listed(accepted)}: those of the path and one more"
    if verdict.accepted != len(accepted):
        return f"a verdict that says accepted={verdict.accepted} of a path of {len(accepted)}"
    return ""


def _granted(policy: Policy, arguments: tuple[Any, ...], budgets: Any) -> str:
    return _one_each(Budget, arguments[1], budgets) or ("" if all(map(_is_budget, budgets)) else "a Budget of no whole numbers")


def _trimmed(policy: Policy, arguments: tuple[Any, ...], kept: Any) -> str:
    _, trees = arguments
    if mistake := _one_each(DraftTree, trees, kept):
        return mistake
    same = all(one.tokens[0] == tree.tokens[0] and {*one.tokens} <= {*tree.tokens} for one, tree in zip(kept, trees, strict=True))
    return "" if same else "a tree with tokens that nobody drafted there"


def _predicted(policy: Policy, arguments: tuple[Any, ...], tokens: Any) -> str:
    return "" if isinstance(tokens, Real) else f"{_said(tokens)}, not a number of tokens"


def _suited(drafter: Drafter, arguments: tuple[Any, ...], suits: Any) -> str:
    return "" if isinstance(suits, bool) else f"{_said(suits)}, not True or False"


_ANSWERS: Mapping[type, Mapping[str, Answer]] = {
    Drafter: {"suits": _suited},
    Verifier: {"__call__": _judged},
    Policy: {"budgets": _granted, "trimmed": _trimmed, "predicted": _predicted},
}
