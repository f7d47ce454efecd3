"""Grammars: constrain an answer, token by token, to a JSON schema, a regular expression or a Lark grammar (llguidance).

llguidance works on bytes. `Pieces` gives the bytes of a token; special tokens match only themselves, and padding matches nothing.
The end of an answer is an extra token after the vocabulary, which is translated into the request's EOS tokens.

Grammars are untrusted. Their size is bounded before they are parsed, and the cost of compiling and matching by llguidance's own
limits and a timeout. A grammar compiles on a thread with a large stack, since rules that refer to each other are followed
recursively.
"""

from __future__ import annotations

import json
import re
from array import array
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import chain
from threading import Lock, Thread, stack_size

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from pydantic import ValidationError

from paceline.constraint import GrammarError, GrammarsBusy
from paceline.models import multiples
from paceline.models.grammar_constraint import GrammarConstraint
from paceline.models.pieces import Pieces
from paceline.models.schemas import DEEPEST, closed, levels_of
from paceline.models.tokenizer import Tokenizer
from paceline.params import Grammar

_SECONDS = 2.0
"""Seconds that a grammar may take to compile. Then the request is refused, and the thread runs on until the library's limits."""
_MOST_GIVEN_UP = 2
"""Most timed-out grammars that still compile, each with a core and memory of its own; at this number no new one begins."""
_STACK_BYTES = 128 << 20
"""A grammar has at most some 24,000 rules, and following one takes about 2 KiB. Only touched pages use real memory."""
_KEPT = 16
"""How many of the latest compiled grammars are kept. One takes up to 25 MB, most of it for states, and up to
twice as much if it holds long texts."""
_SHORT, _SPELLED = 64, 10_000
"""Longest text, in characters, whose tokens are cached, and how many texts are."""
_PART, _PARTS = 1024, 2048
"""Characters of a part of a longer text, and how many parts are cached."""
_INDENT = 32
_WHITESPACE = rf"( |\n[ \t]{{0,{_INDENT}}})"
"""Whitespace between JSON tokens. Without a bound, a model may write spaces until it reaches its token limit."""
_LIMITS = LLParserLimits(
    max_items_in_row=20_000,
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=400_000,
    step_max_items=100_000,
    max_lexer_states=50_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)
_KINDS = {"json_schema": "JSON schema", "regex": "regular expression", "lark": "grammar"}


class Grammars:
    """Compiles grammars for one tokenizer, and keeps the latest. May be used from several threads.

    vocab_size: tokens of the model, padding included; masks are as long.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: frozenset[int] = frozenset()) -> None:
        self.vocab_size, self.eos_token_ids = vocab_size, eos_token_ids
        self._library = LLTokenizer(
            TokenizerWrapper(_Vocabulary(Pieces(tokenizer, vocab_size), vocab_size, eos_token_ids)),
            n_vocab=vocab_size + 1,
            eos_token=vocab_size,
        )
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()
        self._lock = Lock()

    def check(self, grammar: Grammar) -> None:
        """Raises GrammarError if the grammar cannot be used, GrammarsBusy if that cannot be determined now."""
        self._known(grammar)

    def constraint(self, grammar: Grammar, stop_ids: frozenset[int]) -> GrammarConstraint:
        """The state of one answer that ends with any of the model's EOS among `stop_ids`. Raises GrammarError as `check` does."""
        ends = self.eos_token_ids & stop_ids
        made = GrammarConstraint(self._known(grammar), self.vocab_size, ends, partial(self._another, grammar))
        ended = made.over(())
        if ended == "stop":
            # an answer has at least one token, and there would be no rule for it
            raise _refused(grammar, "only an empty answer satisfies it")
        if ended is not None:
            # other answers have filled the states that copies share, and no other matcher could be compiled in time
            raise GrammarsBusy("other answers have used up what this grammar may hold; send the request once more")
        return made

    def _known(self, grammar: Grammar) -> LLMatcher:
        """The grammar's matcher in its initial state, to be copied before use."""
        with self._lock:
            found = self._compiled.get(grammar)
            if found is not None:
                self._compiled.move_to_end(grammar)
                return found
        return self._anew(grammar, _MOST_GIVEN_UP)

    def _another(self, grammar: Grammar, than: LLMatcher) -> tuple[LLMatcher, bool]:
        """A matcher that shares no state with `than`, for use in the middle of an answer: one that another request has compiled
        since, or one compiled now; and whether it was compiled now. Raises GrammarError if it cannot be compiled in time."""
        with self._lock:
            found = self._compiled.get(grammar)
        if found is not None and found is not than:
            return found, False
        # it compiled before, so it may start despite the timed-out ones, but not despite one more
        return self._anew(grammar, _MOST_GIVEN_UP + 1), True

    def _anew(self, grammar: Grammar, most_given_up: int) -> LLMatcher:
        """Compile a new matcher, since copies of one share a state space."""
        made = _within_time(lambda: self._compile(grammar), grammar, most_given_up)
        with self._lock:
            self._compiled[grammar] = made
            self._compiled.move_to_end(grammar)
            while len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        return made

    def _compile(self, grammar: Grammar) -> LLMatcher:
        matcher = LLMatcher(self._library, _text(grammar), log_level=0, limits=_LIMITS)
        if not matcher.is_error():
            # refuse now a grammar that fails at its first token, instead of in the first step
            matcher.compute_bitmask()
        if matcher.is_error():
            raise _refused(grammar, matcher.get_error())
        return matcher


@lru_cache(maxsize=4)
def grammars_of(tokenizer: Tokenizer) -> Grammars:
    """The grammars of a tokenizer without its model, to check whether a grammar can be used."""
    return Grammars(tokenizer, tokenizer.vocab_size)


def check(grammar: Grammar, tokenizer: Tokenizer) -> None:
    """Raises GrammarError, with one sentence, if a grammar cannot be used."""
    grammars_of(tokenizer).check(grammar)


def thought_first(grammar: Grammar, closing: str | int, *, free: bool = False) -> Grammar:
    """The grammar of an answer that first finishes a thought (reasoning text) and then follows `grammar`.

    closing: the text that ends a thought, or the id of a special token that does. free: whether the answer may consist of the
    thought alone. Raises GrammarError if `grammar` cannot be used, or is too long together with a thought.
    """
    ends = json.dumps(closing) if isinstance(closing, str) else f"<[{closing}]>"
    # lazy: the thought ends at the first closing text
    rules = [
        f"start: {'TEXT | ' if free else ''}thought BLANK? @answer",
        f"thought{'[lazy]' if isinstance(closing, str) else ''}: TEXT {ends}",
        "TEXT: /(.|\n)*/",
        f"BLANK: /[ \t\r\n]{{1,{_INDENT}}}/",
    ]
    held = {"lark_grammar": grammar.text} if grammar.kind == "lark" else json.loads(_text(grammar))["grammars"][0]
    # the library's JSON form of several grammars
    grammars = [{"lark_grammar": "\n".join(rules)}, {**held, "name": "answer"}]
    try:
        return Grammar(kind="lark", text=json.dumps({"grammars": grammars}, ensure_ascii=False))
    except ValidationError:
        raise _refused(grammar, "it is too long for an answer that begins with a thought") from None


class _Vocabulary:
    """A tokenizer with the interface that llguidance expects: the bytes of every token, then the end of an answer."""

    bos_token_id = None

    def __init__(self, pieces: Pieces, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        self._pieces, self.eos_token_id = pieces, vocab_size
        self._spelled: dict[str, list[int]] = {}
        # an array takes far less memory than a list of integers
        self._part = lru_cache(_PARTS)(lambda text: array("i", self._pieces.spelled(text.encode())))
        special = {token for token in (*pieces.names, *eos_token_ids) if token < vocab_size}
        self.special_token_ids = [*special, vocab_size]
        self.tokens = [self._named(token, token in special) for token in range(vocab_size)] + [b"<|end of answer|>"]

    def _named(self, token: int, special: bool) -> bytes:
        if special:
            return self._pieces.names.get(token, f"<|special {token}|>").encode()
        return self._pieces.of[token]

    def __call__(self, text: str) -> list[int]:
        """Tokens of exactly these bytes; cached, since llguidance asks for the same forced bytes repeatedly.

        It asks for all that an answer is bound to hold from here on, maybe 60,000 characters, once per token. Such a text is
        divided from its end on, so that all parts but the first are those of the token before.
        """
        if len(text) > 2 * _PART:
            first = _PART + len(text) % _PART
            rest = [self._part(text[at : at + _PART]) for at in range(first, len(text), _PART)]
            return [*self(text[:first]), *chain.from_iterable(rest)]
        found = self._spelled.get(text)
        if found is None:
            found = self._pieces.spelled(text.encode())
            if len(text) <= _SHORT and len(self._spelled) < _SPELLED:
                self._spelled[text] = found
        return list(found)


def _text(grammar: Grammar) -> str:
    """The grammar in llguidance's own form. Raises GrammarError for a schema that is not valid JSON or too deep, and for a
    `multipleOf` that is too large."""
    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(grammar.text)
    if grammar.kind == "lark":
        _check_multiples(grammar, multiples.of_lark(grammar.text))
        return LLMatcher.grammar_from_lark(grammar.text)
    try:
        schema = json.loads(grammar.text)
    except (ValueError, RecursionError) as error:
        raise _refused(grammar, "it is not valid JSON, or far too deep") from error
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise _refused(grammar, "it is neither an object nor true")
    if levels_of(schema) > DEEPEST:
        raise _refused(grammar, f"it is more than {DEEPEST} levels deep")
    _check_multiples(grammar, multiples.of_schema(schema))
    return LLMatcher.grammar_from_json_schema(json.dumps(closed(schema)), defaults={"whitespace_pattern": _WHITESPACE})


def _check_multiples(grammar: Grammar, remainders: int) -> None:
    if remainders > multiples.LARGEST:
        most = f"{multiples.LARGEST}, or several of them that together come to more"
        raise _refused(grammar, f"it has a multipleOf of more than {most}, decimal point and last zeros left out")


def _within_time(compile_one: Callable[[], LLMatcher], grammar: Grammar, most_given_up: int) -> LLMatcher:
    """Run `compile_one` on its own thread and return its result. Raises GrammarError if it fails or times out, and GrammarsBusy
    if `most_given_up` timed-out ones still run."""
    ended: list[LLMatcher | BaseException] = []

    def run() -> None:
        try:
            ended.append(compile_one())
        # a panic of the Rust library is a BaseException, not an Exception
        except BaseException as failure:
            ended.append(failure)

    thread = Thread(target=run, name="grammar", daemon=True)
    with _STARTING:
        _GIVEN_UP[:] = [one for one in _GIVEN_UP if one.is_alive()]
        if len(_GIVEN_UP) >= most_given_up:
            raise GrammarsBusy("no grammar can be compiled now; try again later")
        before = stack_size(_STACK_BYTES)
        try:
            thread.start()
        finally:
            stack_size(before)
    thread.join(_SECONDS)
    if not ended:
        with _STARTING:
            _GIVEN_UP.append(thread)
        raise _refused(grammar, f"it takes more than {_SECONDS:.0f} seconds to compile")
    if isinstance(ended[0], GrammarError):
        raise ended[0]
    if isinstance(ended[0], BaseException):
        raise _refused(grammar, str(ended[0]) or "it cannot be compiled") from ended[0]
    return ended[0]


_STARTING = Lock()
"""Held while the stack size is set, which applies to every thread started then."""
_GIVEN_UP: list[Thread] = []
"""Threads of timed-out grammars; guarded by `_STARTING`."""
_PLACE = re.compile(r"^(at )?\d+\(\d+\): ")
_OVERLAPS = re.compile(r"oneOf constraints are not supported.*")


def _refused(grammar: Grammar, reason: str) -> GrammarError:
    """An error with one sentence made of a reason of possibly many lines; a line "error: ..." of a regex parser is preferred."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()] or ["it cannot be compiled"]
    if lines[0] == "NoExtensionBias":
        lines = ["nothing satisfies it"]
    message = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])
    if grammar.kind != "lark":
        message = _PLACE.sub("", message)
    # the library's message suggests an option that users cannot set
    message = _OVERLAPS.sub("its oneOf has alternatives that may hold of the same value; write anyOf", message)
    return GrammarError(f"the {_KINDS[grammar.kind]} cannot be used: {message[:200]}")
