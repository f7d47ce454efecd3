"""Compiled grammars: masks that depend on the tokens alone, and users' grammars that are refused in one sentence."""

from __future__ import annotations

import json
import re
import time
from random import Random
from threading import Event
from types import SimpleNamespace

import numpy as np
import pytest
from llguidance import LLParserLimits

from grammars import SENTENCE, VOCABULARY, tokenizer
from paceline.constraint import Ahead, GrammarError, GrammarsBusy
from paceline.models import grammar as room
from paceline.models.grammar import Grammars, check, thought_first
from paceline.models.grammar_constraint import GrammarConstraint
from paceline.models.pieces import Pieces
from paceline.params import LONGEST_GRAMMAR, Grammar
from tiny import BOS, EOS

PADDED = VOCABULARY + 7
EOSES = frozenset({EOS})


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(tokenizer(), PADDED, EOSES)


def regex(text: str) -> Grammar:
    return Grammar(kind="regex", text=text)


def schema(value: object) -> Grammar:
    return Grammar(kind="json_schema", text=json.dumps(value))


NAMED = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}


def pieces() -> list[bytes]:
    return [*Pieces(tokenizer(), PADDED).of]


@pytest.mark.parametrize(
    "text", ["b" * 9000, "the inner thing; " * 600, "\u00e9\u4e16" * 3000], ids=["a run", "words", "characters"]
)
def test_a_long_text_to_come_is_divided_from_its_end_on(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """The library asks for all of it before each token; only its beginning is tokenized anew."""
    vocabulary = room._Vocabulary(Pieces(tokenizer(), PADDED), PADDED, EOSES)
    before = vocabulary(text)
    assert vocabulary._pieces.bytes_of(before) == text.encode()
    lengths, spelled = list[int](), vocabulary._pieces.spelled
    monkeypatch.setattr(vocabulary._pieces, "spelled", lambda data: lengths.append(len(data.decode())) or spelled(data))
    after = vocabulary(text[3:])
    assert len(lengths) == 1
    assert lengths[0] < 2 * room._PART
    assert vocabulary._pieces.bytes_of(after) == text[3:].encode()
    assert after == room._Vocabulary(Pieces(tokenizer(), PADDED), PADDED, EOSES)(text[3:])


def walked(constraint: GrammarConstraint, stream: Random, longest: int) -> list[int]:
    """Random tokens that the grammar allows, without committing them."""
    path: list[int] = []
    while len(path) < longest and EOS not in path:
        path.append(int(stream.choice(np.flatnonzero(constraint.allowed(tuple(path))))))
    return path


@pytest.mark.parametrize(
    "grammar",
    [
        regex(SENTENCE),
        schema({"type": "object", "properties": {"the": {"type": "integer"}, "in": {"enum": ["the", "then", "inner"]}}}),
        Grammar(kind="lark", text='start: item+\nitem: "(" start? ")" | WORD\nWORD: /[a-e]{1,3}/ " "'),
    ],
    ids=lambda grammar: grammar.kind,
)
def test_a_mask_depends_on_the_tokens_before_it_alone(grammars: Grammars, grammar: Grammar) -> None:
    """After any walk, with dead ends, jumps and commits, the mask equals that of a constraint that reads the text once."""
    stream = Random(1)
    for _ in range(6):
        constraint, text = grammars.constraint(grammar, EOSES), list[int]()
        for _ in range(12):
            paths = [tuple(walked(constraint, stream, stream.randint(0, 6))) for _ in range(3)]
            paths += [(*path, stream.randrange(PADDED)) for path in paths]
            for path in stream.sample(paths, len(paths)):
                fresh = grammars.constraint(grammar, EOSES)
                fresh.commit(tuple(text))
                for token in path:
                    fresh.commit((token,))
                refused = any(not constraint.allowed(path[:at])[token] or token == EOS for at, token in enumerate(path))
                wanted = np.ones(PADDED, bool) if refused else fresh.allowed(())
                assert np.array_equal(constraint.allowed(path), wanted)
                assert np.array_equal(Ahead(constraint).allowed(path), wanted)
            taken = tuple(walked(constraint, stream, stream.randint(1, 3)))
            if EOS in taken:
                break
            constraint.commit(taken)
            text += taken


def test_what_a_mask_allows_is_what_the_language_allows(grammars: Grammars) -> None:
    """Against all sentences of a finite language. Where bytes are forced only one tokenization is allowed, elsewhere all are."""
    sentences = [f"{a} {b}{c}" for a in ("the", "th", "in", "tin") for b in ("x", "inner", "i") for c in ("", "the", "in")]
    constraint, table, stream = grammars.constraint(regex("|".join(map(re.escape, sentences))), EOSES), pieces(), Random(2)
    for _ in range(150):
        path, text = list[int](), b""
        while EOS not in path:
            rest = [one.encode()[len(text) :] for one in sentences if one.encode().startswith(text)]
            wanted = {token for token, piece in enumerate(table) if piece and any(one.startswith(piece) for one in rest)}
            wanted |= {EOS} if b"" in rest else set()
            allowed = set(np.flatnonzero(constraint.allowed(tuple(path))).tolist())
            forced = len({one[:1] for one in rest}) == 1
            assert allowed <= wanted if forced else allowed == wanted
            assert allowed
            path.append(stream.choice(sorted(allowed)))
            text += table[path[-1]]
        assert text.decode() in sentences


def test_special_tokens_and_padding_are_never_text(grammars: Grammars) -> None:
    constraint = grammars.constraint(regex(r"(.|\n)*"), EOSES)
    allowed = constraint.allowed(())
    assert allowed.shape == (PADDED,)
    assert allowed[EOS]
    assert not allowed[[0, BOS]].any()
    assert not allowed[VOCABULARY:].any()
    assert allowed[3:VOCABULARY].sum() > 128


def test_a_grammar_may_name_a_special_token(grammars: Grammars) -> None:
    constraint = grammars.constraint(Grammar(kind="lark", text='start: "a" <s> "b"'), EOSES)
    a, b = (tokenizer().encode(letter, add_special=False)[0] for letter in "ab")
    assert constraint.forced(9) == (a, BOS, b, EOS)


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        (schema({"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}), '{"a": 1}'),
        (regex(r"a/b\/[/}]"), "a/b/}"),
        (Grammar(kind="lark", text='start: word+\nword: WORD\nWORD: "a/b"\n%ignore /\\s+/\n'), "a/b a/b"),
    ],
    ids=lambda value: value.kind if isinstance(value, Grammar) else "",
)
@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("closing", ["</think>", BOS])
def test_a_grammar_may_begin_behind_the_end_of_a_thought(
    grammars: Grammars, grammar: Grammar, said: str, free: bool, closing: str | int
) -> None:
    def verdict(*parts: str | int) -> str:
        matcher = grammars._known(thought_first(grammar, closing, free=free)).deep_copy()
        ids = [
            token for one in parts for token in ([one] if isinstance(one, int) else tokenizer().encode(one, add_special=False))
        ]
        if matcher.try_consume_tokens(ids) < len(ids):
            return "refused"
        return "whole" if matcher.is_accepting() else "begun"

    for blank in ("", "\n\n"):
        assert verdict(f"So {said} it is\n", closing, blank + said) == "whole"
        assert verdict(closing, blank + said) == "whole"
        assert verdict("So", closing, blank + "zz") == "refused"
        assert verdict("So", closing, blank) == "begun"
    assert verdict(said) == verdict("") == ("whole" if free else "begun")
    with pytest.raises(GrammarError, match="too long"):
        thought_first(Grammar(kind="regex", text="a" * LONGEST_GRAMMAR), closing)


def test_any_eos_of_the_model_may_end_the_answer() -> None:
    grammars = Grammars(tokenizer(), PADDED, frozenset({0, EOS}))
    constraint = grammars.constraint(regex("in"), frozenset({0, EOS, 77}))
    assert constraint.forced(9) == (*tokenizer().encode("in", add_special=False), 0)
    constraint.commit(constraint.forced(1))
    assert np.flatnonzero(constraint.allowed(())).tolist() == [0, EOS]
    assert constraint.over(()) is None


def test_without_an_eos_the_answer_is_over_where_nothing_may_follow() -> None:
    grammars = Grammars(tokenizer(), PADDED)
    constraint = grammars.constraint(regex("the(n!)?"), frozenset({EOS}))
    the, n, bang = (tokenizer().encode(text, add_special=False)[0] for text in ("the", "n", "!"))
    assert constraint.over((the,)) is None
    assert np.flatnonzero(constraint.allowed((the,))).tolist() == [n]
    assert constraint.over((the, n, bang)) == "stop"
    assert constraint.allowed((the, n, bang)).all()
    constraint.commit((the, n, bang))
    assert constraint.over(()) == "stop"


@pytest.mark.parametrize("names", [("a", "b"), ("ia", "ib"), ("a", "b", "c")])
def test_alternatives_that_require_different_properties_exclude_each_other(grammars: Grammars, names: tuple[str, ...]) -> None:
    alternatives = [{"type": "object", "properties": {name: {} for name in one}, "required": [*one]} for one in names]
    grammars.check(schema({"oneOf": alternatives}))
    grammars.check(schema({"type": "object", "properties": {"x": {"oneOf": alternatives}}}))


def test_a_grammar_of_an_empty_answer_is_refused_before_a_token_is_drawn(grammars: Grammars) -> None:
    """Without an EOS there is no token that it could have."""
    with pytest.raises(GrammarError, match="only an empty answer satisfies it"):
        grammars.constraint(regex("()"), frozenset())
    assert grammars.constraint(regex("()"), frozenset({EOS})).over(()) is None


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (regex("(ab"), "unclosed group"),
        (regex("(?=a)b"), "look-around"),
        (regex(r"\p{Nonsense}"), "property"),
        (regex("(" * 30_000 + ")" * 30_000), "nest"),
        (regex("[^\\x00-\\x{10FFFF}]"), "nothing satisfies it"),
        (schema({"type": "nonsense"}), "Invalid type: nonsense"),
        (schema({"not": {"type": "string"}}), "not"),
        (schema({"$ref": "https://example.com/schema.json"}), "not present"),
        (schema(False), "neither an object nor true"),
        (schema({"enum": []}), "Unsatisfiable"),
        (schema([1]), "neither an object nor true"),
        (schema({"oneOf": [{"type": "object"}, {"type": "object", "required": ["a"]}]}), "write anyOf"),
        (schema({"oneOf": [NAMED, {**NAMED, "properties": {"a": {"type": "string"}, "b": {}}}]}), "write anyOf"),
        (schema({"oneOf": [NAMED, {"type": "object", "properties": {"b": {}}}]}), "write anyOf"),
        (Grammar(kind="json_schema", text="{"), "not valid JSON"),
        (Grammar(kind="json_schema", text="[" * 60_000), "not valid JSON"),
        (Grammar(kind="json_schema", text='{"not":' * 40 + "{}" + "}" * 40), "more than 32 levels"),
        (Grammar(kind="lark", text='start: "a'), "lexer error"),
        (Grammar(kind="lark", text="start: nobody"), "nobody"),
        (Grammar(kind="lark", text="start: <|nobody|>"), "unknown special token"),
        (Grammar(kind="lark", text="start: " + "(" * 30_000 + '"a"' + ")" * 30_000), "nested"),
        (Grammar(kind="lark", text='start: start "a"'), ""),
        (
            Grammar(kind="lark", text="start: T0\n" + "".join(f"T{i}: T{i + 1} T{i + 1}\n" for i in range(60)) + 'T60: "x"'),
            "too big",
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, Grammar) else value,
)
def test_a_grammar_that_cannot_be_used_is_refused_in_one_sentence(grammars: Grammars, grammar: Grammar, reason: str) -> None:
    good = regex("then")
    grammars.check(good)
    with pytest.raises(GrammarError) as refused:
        grammars.check(grammar)
    told = str(refused.value)
    assert reason in told
    assert "\n" not in told
    assert len(told) < 280
    assert told.startswith(("the JSON schema ", "the regular expression ", "the grammar "))
    grammars.check(good)
    with pytest.raises(GrammarError):
        check(grammar, tokenizer())
    check(good, tokenizer())


TREE = {
    "$defs": {"tree": {"type": "object", "properties": {"in": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}},
    "$ref": "#/$defs/tree",
}


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar(kind="lark", text="start:a0\n" + "".join(f"a{i}:a{i + 1}\n" for i in range(5200)) + 'a5200:"x"'),
        Grammar(kind="lark", text="start: r0\n" + "".join(f'r{i}: r{i + 1} "x"\n' for i in range(3600)) + 'r3600: "x"'),
        Grammar(kind="json_schema", text='{"items":' * 31 + "{}" + "}" * 31),
        schema({"$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(1800)} | {"d1800": {}}, "$ref": "#/$defs/d0"}),
        schema({"enum": [f"value number {i}" for i in range(3000)]}),
        schema({"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(1500)}}),
        regex("|".join(f"w{i}x" for i in range(8000))),
        schema(TREE),
    ],
    ids=["short rules", "rules", "deep", "references", "enum", "properties", "alternatives", "recursion"],
)
def test_a_large_grammar_is_compiled_and_walked(grammars: Grammars, grammar: Grammar) -> None:
    constraint = grammars.constraint(grammar, EOSES)
    assert walked(constraint, Random(3), 30)
    assert constraint.over(()) is None


def test_what_takes_too_long_is_refused(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_SECONDS", 0.05)
    monkeypatch.setattr(grammars, "_compile", lambda grammar: time.sleep(0.4))
    began = time.perf_counter()
    with pytest.raises(GrammarError, match="takes more than"):
        grammars.check(regex("never seen before"))
    assert time.perf_counter() - began < 0.35


INTEGER = {"type": "integer"}
LARGE = [
    {**INTEGER, "multipleOf": 9_999_991},
    {"type": "number", "multipleOf": 12345.678},
    {**INTEGER, "multipleOf": 10**4000 + 1},
    {"type": "object", "properties": {"a": {"items": {"multipleOf": 9.99991}}}},
    {**INTEGER, "allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]},
    {**INTEGER, "multipleOf": 9973, "anyOf": [{"multipleOf": 9967}, {"multipleOf": 2}]},
    {"$defs": {"a": {"multipleOf": 9967}}, "multipleOf": 9973, "$ref": "#/$defs/a"},
    {"elsewhere": {"multipleOf": 9_999_991}, "$ref": "#/elsewhere"},
]


@pytest.mark.parametrize(
    "grammar",
    [
        *map(schema, LARGE),
        Grammar(kind="lark", text="start: %json " + json.dumps(LARGE[0])),
        Grammar(kind="lark", text=f"start: a | b\na: %json\n{json.dumps(INTEGER)}\nb: %json{json.dumps(LARGE[4])}"),
        Grammar(kind="lark", text=json.dumps({"grammars": [{"json_schema": LARGE[0]}]})),
        thought_first(Grammar(kind="lark", text="start: %json " + json.dumps(LARGE[0])), "</think>"),
    ],
)
def test_a_multiple_with_too_many_remainders_is_refused_before_it_is_compiled(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch, grammar: Grammar
) -> None:
    monkeypatch.setattr(room, "LLMatcher", SimpleNamespace())
    with pytest.raises(GrammarError, match=r"cannot be used: it has a multipleOf of more than 65536.* left out$"):
        grammars.check(grammar)


FIELDS = {"type": "object", "properties": {"a": {**INTEGER, "multipleOf": 991}, "b": {**INTEGER, "multipleOf": 997}}}


@pytest.mark.parametrize(
    "value",
    [
        *({**INTEGER, "multipleOf": multiple} for multiple in (60_000, 65_536, 1_000_000, 1234.5, 9999)),
        *({"type": "number", "multipleOf": multiple} for multiple in (0.00001, 1e-9, 12.345, 1.0001)),
        FIELDS,
        {**INTEGER, "allOf": [{"multipleOf": 60}, {"multipleOf": 7}]},
        {"type": "object", "properties": {"multipleOf": {"const": "multipleOf: 9999991"}}},
    ],
)
def test_multiples_of_few_remainders_are_enforced(grammars: Grammars, value: object) -> None:
    for grammar in (schema(value), Grammar(kind="lark", text=f"start: %json {json.dumps(value)}")):
        assert walked(grammars.constraint(grammar, EOSES), Random(5), 8)


def test_no_grammar_is_compiled_while_too_many_given_up_compilations_still_run(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, ended = regex("compiled before"), Event()
    answer = grammars.constraint(known, EOSES)
    monkeypatch.setattr(room, "_GIVEN_UP", [])
    monkeypatch.setattr(room, "_SECONDS", 0.05)
    with monkeypatch.context() as slow:
        slow.setattr(grammars, "_compile", lambda grammar: ended.wait(20))
        for count in range(room._MOST_GIVEN_UP):
            with pytest.raises(GrammarError, match="takes more than"):
                grammars.check(regex(f"slow {count}"))
    threads = [*room._GIVEN_UP]
    try:
        with pytest.raises(GrammarsBusy, match="try again later"):
            grammars.check(regex("never seen, but quick"))
        grammars.check(known)
        # the grammar of a running answer may still be compiled again, until one more compilation is given up
        made, anew = answer._another(answer._unread)
        assert anew
        with monkeypatch.context() as slow:
            slow.setattr(grammars, "_compile", lambda grammar: ended.wait(20))
            with pytest.raises(GrammarError, match="takes more than"):
                answer._another(made)
        threads.append(room._GIVEN_UP[-1])
        with pytest.raises(GrammarsBusy):
            answer._another(made)
    finally:
        ended.set()
    for thread in threads:
        thread.join()
    monkeypatch.setattr(room, "_SECONDS", 2.0)
    grammars.check(regex("never seen, but quick"))


def test_a_panic_is_a_refusal(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    class Panic(BaseException):
        pass

    def panics(grammar: Grammar) -> None:
        raise Panic("called Option::unwrap() on a None value")

    monkeypatch.setattr(grammars, "_compile", panics)
    with pytest.raises(GrammarError, match="unwrap"):
        grammars.check(regex("never seen either"))


def test_only_the_latest_grammars_are_kept() -> None:
    grammars = Grammars(tokenizer(), PADDED)
    for count in range(100):
        grammars.check(regex(f"[a-z]{{{count + 1}}}"))
    assert len(grammars._compiled) == room._KEPT


def test_an_answer_ends_by_length_where_its_grammar_gets_too_costly(grammars: Grammars) -> None:
    constraint = grammars.constraint(regex("((((a{1,1000}){1,1000}){1,1000}){1,1000})"), EOSES)
    letter, path = tokenizer().encode("a", add_special=False)[0], ()
    while constraint.over(path) is None:
        path = (*path, letter)
        assert len(path) < 200
    assert constraint.over(path) == "length"
    assert constraint.allowed(path).all()
    # other positions are unaffected
    assert not constraint.allowed(()).all()
    assert constraint.over(path[:-1]) is None


def test_masks_do_not_depend_on_what_other_answers_have_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of a matcher share one count of states: earlier answers and drafts must not use up the limit of the next answer."""
    monkeypatch.setattr(room, "_LIMITS", LLParserLimits(max_lexer_states=400, verbose_errors=False))
    grammar = regex("[a-z ]*[aeiou][a-z ]{40}")
    table, letters = pieces(), set(b"abcdefghijklmnopqrstuvwxyz ")
    fitting = [token for token, piece in enumerate(table) if piece and letters.issuperset(piece)]
    outside = [token for token, piece in enumerate(table) if piece and not letters.issuperset(piece)]

    def walked_through(constraint: GrammarConstraint, stream: Random) -> list[np.ndarray | None]:
        """The masks; None behind drafts for which no mask was available."""
        masks = []
        for _ in range(60):
            draft = tuple(stream.choices(fitting, k=3))
            found = [constraint.allowed(draft[:size]) for size in range(4)]
            told = constraint.checked((*draft, outside[0]))
            assert told
            assert all(mask.all() for mask in found[told : told + 1])
            masks += [*found[:told], *[None] * (4 - told)]
            # behind a token that the grammar refuses every token is allowed, and the answer continues
            assert constraint.allowed((outside[0],)).all()
            assert constraint.over((outside[0],)) is None
            assert constraint.over(()) is None
            constraint.commit(draft[:2])
        return masks

    grammars = Grammars(tokenizer(), PADDED, EOSES)
    runs = [walked_through(grammars.constraint(grammar, EOSES), Random(8)) for _ in range(4)]
    known = [[mask for mask in masks if mask is not None] for masks in zip(*runs, strict=True)]
    assert not any(mask[outside].any() for masks in known for mask in masks)
    assert all(np.array_equal(masks[0], mask) for masks in known for mask in masks[1:])
    assert all(len(masks) == 4 for masks in known[::4]), "the mask behind committed text is always available"
    assert sum(map(len, known)) > 800


def test_a_matcher_past_its_limits_is_replaced_once_for_all_answers_and_for_no_draft(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammar, compiled = regex(SENTENCE), []
    answers = [grammars.constraint(grammar, EOSES) for _ in range(3)]
    path = grammars.constraint(grammar, EOSES).forced(1)
    past, compile_one, read_off = answers[0]._unread, grammars._compile, GrammarConstraint._read_off
    monkeypatch.setattr(grammars, "_compile", lambda one: (compiled.append(one), compile_one(one))[1])
    monkeypatch.setattr(GrammarConstraint, "_read_off", lambda self, path: None if self._unread is past else read_off(self, path))
    for answer in answers:
        assert answer.allowed(path).all(), "no mask is available for a draft"
        assert (answer.checked(path), answer.checked((*path, 5, 6))) == (1, 1)
    assert not compiled
    for answer in answers:
        assert answer.over(path) is None
        assert answer.checked((*path, 5, 6)) == 3
        assert not answer.allowed(path).all()
        answer.commit(path)
        assert not answer.allowed(()).all()
    assert len(compiled) == 1


def test_a_constraint_gives_the_same_mask_after_its_walk_was_lost(grammars: Grammars) -> None:
    constraint, fresh = (grammars.constraint(regex(SENTENCE), EOSES) for _ in range(2))
    path = constraint.forced(2)
    constraint.commit(path)
    fresh.commit(path)
    constraint.allowed(tuple(walked(constraint, Random(4), 5)))
    constraint._ahead = None
    constraint._places.clear()
    assert np.array_equal(constraint.allowed(()), fresh.allowed(()))


def test_white_space_between_the_words_of_json_is_bounded(grammars: Grammars) -> None:
    constraint, table = grammars.constraint(schema({"type": "array"}), EOSES), pieces()
    spaces = [token for token, piece in enumerate(table) if piece and not piece.strip()]
    path = tuple(tokenizer().encode("[", add_special=False))
    for _ in range(room._INDENT + 2):
        left = [token for token in spaces if constraint.allowed(path)[token]]
        if not left:
            return
        path = (*path, left[0])
    raise AssertionError("a model may write spaces for ever")
