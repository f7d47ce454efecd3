"""Grammars: a JSON schema, a regular expression or a Lark grammar as what one answer may say, token by token (llguidance).

llguidance reads bytes. What a token stands for is said by `Pieces`; special tokens stand for nothing but themselves, and padding
for nothing at all. The end is a token of our own behind the vocabulary, which is translated into those that end the request.

A grammar comes from a stranger. Its size is bounded before it is read, and what compiling and reading it may take by llguidance's
own limits and by a clock. It compiles on a thread with a stack of its own: rules that name one another are followed recursively.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache, partial
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
"""For one grammar to compile in. What takes longer is given up, and goes on until it ends by its own limits."""
_MOST_GIVEN_UP = 2
"""Grammars that were given up and still compile, each on a core and in memory of its own. With so many no other one begins."""
_STACK_BYTES = 128 << 20
"""A grammar holds at most some 24,000 rules, and following one takes about 2 KiB. Only what is touched is real memory."""
_KEPT = 16
"""Compiled grammars that are kept, of the latest. One takes up to 25 MB, most of it for states."""
_SHORT, _SPELLED = 64, 10_000
"""Characters of a text, and how many texts, whose tokens are remembered."""
_INDENT = 32
_WHITESPACE = rf"( |\n[ \t]{{0,{_INDENT}}})"
"""Between the words of a JSON text. Without a bound a model may write spaces until its tokens are used up."""
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
        """Raises GrammarError where the grammar cannot be used, GrammarsBusy where that cannot be said now."""
        self._known(grammar)

    def constraint(self, grammar: Grammar, stop_ids: frozenset[int]) -> GrammarConstraint:
        """The state of one answer that ends with any of the model's EOS among `stop_ids`. Raises GrammarError as `check` does."""
        ends = self.eos_token_ids & stop_ids
        return GrammarConstraint(self._known(grammar), self.vocab_size, ends, partial(self._another, grammar))

    def _known(self, grammar: Grammar) -> LLMatcher:
        """One that has read nothing, of which copies are to read."""
        with self._lock:
            found = self._compiled.get(grammar)
            if found is not None:
                self._compiled.move_to_end(grammar)
                return found
        return self._anew(grammar, _MOST_GIVEN_UP)

    def _another(self, grammar: Grammar, than: LLMatcher) -> tuple[LLMatcher, bool]:
        """One that shares nothing with `than`, in the middle of an answer: somebody else's of since then, or one that is made
        now; and whether it is. Raises GrammarError where it cannot be made in time."""
        with self._lock:
            found = self._compiled.get(grammar)
        if found is not None and found is not than:
            return found, False
        # it was compiled before, so others' that take too long do not keep it from that, but one such of its own kind does
        return self._anew(grammar, _MOST_GIVEN_UP + 1), True

    def _anew(self, grammar: Grammar, most_given_up: int) -> LLMatcher:
        """One that shares nothing with those before: copies count what they have seen in common."""
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
            # what cannot even begin is refused, and not left to the first step
            matcher.compute_bitmask()
        if matcher.is_error():
            raise _refused(grammar, matcher.get_error())
        return matcher


@lru_cache(maxsize=4)
def grammars_of(tokenizer: Tokenizer) -> Grammars:
    """Those of a tokenizer without its model: enough to say whether a grammar can be used."""
    return Grammars(tokenizer, tokenizer.vocab_size)


def check(grammar: Grammar, tokenizer: Tokenizer) -> None:
    """Raises GrammarError, in one sentence, where a grammar cannot be used."""
    grammars_of(tokenizer).check(grammar)


def thought_first(grammar: Grammar, closing: str | int, *, free: bool = False) -> Grammar:
    """The grammar of an answer that has a thought to end before it keeps to `grammar`.

    closing: the text that ends a thought, or the id of a special token, which no text can spell. free: whether the thought may
    be all of it. Raises GrammarError where `grammar` cannot be used, or is too long with a thought before it.
    """
    ends = json.dumps(closing) if isinstance(closing, str) else f"<[{closing}]>"
    # lazy: what closes a thought is never part of it
    rules = [
        f"start: {'TEXT | ' if free else ''}thought BLANK? @answer",
        f"thought{'[lazy]' if isinstance(closing, str) else ''}: TEXT {ends}",
        "TEXT: /(.|\n)*/",
        f"BLANK: /[ \t\r\n]{{1,{_INDENT}}}/",
    ]
    held = {"lark_grammar": grammar.text} if grammar.kind == "lark" else json.loads(_text(grammar))["grammars"][0]
    # the form in which the library takes several at once
    grammars = [{"lark_grammar": "\n".join(rules)}, {**held, "name": "answer"}]
    try:
        return Grammar(kind="lark", text=json.dumps({"grammars": grammars}, ensure_ascii=False))
    except ValidationError:
        raise _refused(grammar, "it is too long for an answer that begins with a thought") from None


class _Vocabulary:
    """A tokenizer as llguidance asks for one: the bytes of every token, then the end of an answer."""

    bos_token_id = None

    def __init__(self, pieces: Pieces, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        self._pieces, self.eos_token_id = pieces, vocab_size
        self._spelled: dict[str, list[int]] = {}
        special = {token for token in (*pieces.names, *eos_token_ids) if token < vocab_size}
        self.special_token_ids = [*special, vocab_size]
        self.tokens = [self._named(token, token in special) for token in range(vocab_size)] + [b"<|end of answer|>"]

    def _named(self, token: int, special: bool) -> bytes:
        if special:
            return self._pieces.names.get(token, f"<|special {token}|>").encode()
        return self._pieces.of[token]

    def __call__(self, text: str) -> list[int]:
        """Tokens of exactly these bytes; llguidance asks for the same forced ones again and again."""
        found = self._spelled.get(text)
        if found is None:
            found = self._pieces.spelled(text.encode())
            if len(text) <= _SHORT and len(self._spelled) < _SPELLED:
                self._spelled[text] = found
        return list(found)


def _text(grammar: Grammar) -> str:
    """The grammar in llguidance's own form. Raises GrammarError for a schema that is no JSON or too deep."""
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
    """What it returns, from a thread of its own. Raises GrammarError, also where it takes too long or breaks, and GrammarsBusy
    where so many that took too long still run."""
    ended: list[LLMatcher | BaseException] = []

    def run() -> None:
        try:
            ended.append(compile_one())
        # a panic of the library is no Exception
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
"""The size of a stack is set for whatever thread starts next."""
_GIVEN_UP: list[Thread] = []
"""Threads of grammars that took too long; `_STARTING` guards them."""
_PLACE = re.compile(r"^(at )?\d+\(\d+\): ")
_OVERLAPS = re.compile(r"oneOf constraints are not supported.*")


def _refused(grammar: Grammar, reason: str) -> GrammarError:
    """One sentence of what may be many lines, of which an expression's own parser says the reason last."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()] or ["it cannot be compiled"]
    if lines[0] == "NoExtensionBias":
        lines = ["nothing satisfies it"]
    message = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])
    if grammar.kind != "lark":
        message = _PLACE.sub("", message)
    # it names an option of the library there, which nobody can set
    message = _OVERLAPS.sub("its oneOf has alternatives that may hold of the same value; write anyOf", message)
    return GrammarError(f"the {_KINDS[grammar.kind]} cannot be used: {message[:200]}")
