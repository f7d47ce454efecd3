"""Structured answers: equal to plain decoding under the same grammar with every drafter, and complete texts of that grammar."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence as Many
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest

from fakes import MixedDrafter, TreeDrafter
from grammars import REQUESTS, SENTENCE, VOCABULARY, answers, drafters, engine_of, model_of, tokenizer, whole
from paceline import LLM, SamplingParams
from paceline.compose import build_verifier
from paceline.engine.engine import RequestError
from paceline.engine.llm import Completion
from paceline.engine.scheduler import Limits
from paceline.models.embedded import DEFAULT, embedded_models
from paceline.models.grammar import Grammars
from paceline.params import Grammar
from paceline.registry import VERIFIERS
from paceline.sequence import Sequence
from paceline.step import Verdict
from paceline.tree import DraftTree
from paceline.verifiers.match import Match
from tiny import BOS, EOS

embedded = pytest.mark.skipif(not embedded_models(), reason="the embedded weights are not part of this checkout")
WORDS = Grammar(kind="regex", text=SENTENCE)
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["alpha", "beta", "gamma"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
GRAMMARS = {
    "schema": Grammar(kind="json_schema", text=json.dumps(PERSON)),
    "expression": Grammar(kind="regex", text=r"(The|A|Every) [a-z]{2,9} (is|was) [a-z]{2,9}( and [a-z]{2,9}){0,3}\."),
    "lark": Grammar(
        kind="lark", text='start: sum\nsum: part (" + " part)*\npart: NUMBER | "(" sum ")"\nNUMBER: /[1-9][0-9]{0,3}/\n'
    ),
}
SPECS = (
    "grammar",
    "grammar:depth=3+ngram",
    "model:paceline-14m-draft,depth=3,width=2",
    "ngram^model:paceline-14m-draft,depth=4",
    "lookahead:3,3,2+grammar",
    "jacobi:4",
    "suffix+recycle:nodes=6",
    "auto",
)
PROMPTS = ["Tell me about Tom. Answer: ", "def total(values):\n    return", "Q: what is 2 + 2?\nA: "]


def params(kind: str, temperature: float, **more: Any) -> SamplingParams:
    return SamplingParams(max_tokens=48, temperature=temperature, seed=5, grammar=GRAMMARS[kind], **more)


@cache
def llm(spec: str = "none", verify: str = "match") -> LLM:
    return LLM(DEFAULT, spec, batch=3, prefill_chunk=16, verify=verify)


@cache
def plain(kind: str, temperature: float) -> list[Completion]:
    return [llm().generate(prompt, params(kind, temperature))[0] for prompt in PROMPTS]


@embedded
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", GRAMMARS)
@pytest.mark.parametrize("spec", SPECS)
def test_text_is_that_of_plain_decoding_under_the_same_grammar(spec: str, kind: str, temperature: float) -> None:
    found = llm(spec).generate(PROMPTS, params(kind, temperature))
    assert [one.token_ids for one in found] == [one.token_ids for one in plain(kind, temperature)]


def satisfied(kind: str, text: str) -> bool:
    if kind == "schema":
        return fits(json.loads(text), PERSON)
    if kind == "expression":
        return re.fullmatch(GRAMMARS[kind].text, text) is not None
    text = re.sub("[1-9][0-9]{0,3}", "n", text)
    while (shorter := re.sub(r"\(n( \+ n)*\)", "n", text)) != text:
        text = shorter
    return re.fullmatch(r"n( \+ n)*", text) is not None


EXACT = [row.example for name, row in VERIFIERS.items() if name != "match" and build_verifier(row.example).exactness]


@embedded
@pytest.mark.parametrize("verify", EXACT)
def test_every_exact_rule_keeps_to_the_grammar_and_greedy_to_the_text(verify: str) -> None:
    drafting = llm("model:paceline-14m-draft,depth=3", verify)
    for kind in GRAMMARS:
        found = drafting.generate(PROMPTS, params(kind, 0.0))
        assert [one.token_ids for one in found] == [one.token_ids for one in plain(kind, 0.0)]
        for one in drafting.generate(PROMPTS, params(kind, 1.0)):
            assert one.finish_reason == "length" or satisfied(kind, one.text)


@embedded
def test_a_model_drafts_what_the_grammar_allows() -> None:
    """A draft's tokens are chosen under the same mask, so enough of them are accepted."""
    found = llm("model:paceline-14m-draft,depth=3").generate(PROMPTS, params("schema", 0.0))
    assert sum(one.speculation.accepted_tokens for one in found) > 0.4 * sum(one.speculation.draft_tokens for one in found)


@embedded
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_look_ups_bring_what_the_grammar_allows(temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verified drafts hold no disallowed token, although most continuations found by lookups are not JSON."""
    honest, seen = Match.__call__, [0]

    def watching(self: Match, sequences: Many[Sequence], trees: Many[DraftTree], logits: Many[Any]) -> list[Verdict]:
        for sequence, tree in zip(sequences, trees, strict=True):
            assert sequence.constraint is not None
            for node in range(1, tree.candidates):
                *above, token = (tree.tokens[step] for step in tree.path(node))
                assert sequence.constraint.allowed(tuple(above))[token]
                seen[0] += 1
        return honest(self, sequences, trees, logits)

    monkeypatch.setattr(Match, "__call__", watching)
    found = llm("ngram:matches=4+recycle:nodes=12").generate(PROMPTS, params("schema", temperature))
    assert [one.token_ids for one in found] == [one.token_ids for one in plain("schema", temperature)]
    assert seen[0] > 50


def test_the_readable_length_of_a_path_is_what_the_masks_allow_token_by_token() -> None:
    """Behind random beginnings of an answer, for paths of allowed and other tokens."""
    stream, ends = Random(0), frozenset({EOS})
    grammars = Grammars(tokenizer(), VOCABULARY + 5, ends)
    cut = 0
    for _ in range(40):
        walked, asked = grammars.constraint(WORDS, ends), grammars.constraint(WORDS, ends)
        for _ in range(stream.randrange(25)):
            token = stream.choice(np.flatnonzero(walked.allowed(())).tolist())
            if token == EOS:
                break
            walked.commit((token,))
            asked.commit((token,))
        path: tuple[int, ...] = ()
        while len(path) < 8 and EOS not in path:
            allowed = np.flatnonzero(walked.allowed(path)).tolist()
            path = (*path, stream.choice(allowed) if stream.random() < 0.8 else stream.randrange(VOCABULARY))
        wanted = next((at for at, token in enumerate(path) if not walked.allowed(path[:at])[token]), len(path))
        # `readable` may count the EOS; the mask excludes it
        assert asked.readable(path) in (wanted, wanted + (EOS in path[wanted : wanted + 1]))
        cut += wanted < len(path)
        if wanted:
            # and the grammar's state has not moved
            assert asked.allowed(())[path[0]]
    assert cut > 10


@embedded
def test_tokens_that_the_grammar_forces_are_always_accepted() -> None:
    found = llm("grammar").generate(PROMPTS, params("schema", 1.0))
    drafted = sum(one.speculation.draft_tokens for one in found)
    assert drafted == sum(one.speculation.accepted_tokens for one in found) > 20
    assert {source for one in found for source in one.sources} == {"", "grammar"}


# --- random schemas ---


def random_schema(stream: Random, depth: int = 0) -> dict[str, Any]:
    kinds = ["boolean", "integer", "enum", "null", "string", "const", "number"] + ["object", "array", "anyOf"] * (depth < 3)
    match stream.choice(kinds):
        case "integer":
            low = stream.randint(-50, 50)
            return {"type": "integer", "minimum": low, "maximum": low + stream.randint(0, 500)}
        case "number":
            return {"type": "number", "minimum": 0, "maximum": stream.randint(1, 99)}
        case "string":
            return {"type": "string", "minLength": stream.randint(0, 2), "maxLength": stream.randint(2, 8)}
        case "enum":
            return {"enum": stream.sample(["red", "green", "a b", '"', "é", 1, 2.5, None, True], stream.randint(1, 4))}
        case "const":
            return {"const": stream.choice(["fixed", 7, False])}
        case "array":
            low = stream.randint(0, 2)
            return {"type": "array", "items": random_schema(stream, depth + 1), "minItems": low, "maxItems": low + 1}
        case "anyOf":
            return {"anyOf": [random_schema(stream, depth + 1) for _ in range(2)]}
        case "object":
            names = stream.sample(["id", "name", "the value", "x", "ключ"], stream.randint(1, 3))
            return {
                "type": "object",
                "properties": {name: random_schema(stream, depth + 1) for name in names},
                "required": stream.sample(names, stream.randint(0, len(names))),
                "additionalProperties": False,
            }
        case plain_kind:
            return {"type": plain_kind}


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """JSON Schema, as far as `random_schema` uses it."""
    if "anyOf" in schema:
        return any(fits(value, one) for one in schema["anyOf"])
    if "enum" in schema:
        return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in schema["enum"])
    if "const" in schema:
        return value == schema["const"] and isinstance(value, bool) == isinstance(schema["const"], bool)
    match schema["type"]:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "integer" | "number" as kind:
            if not isinstance(value, int | float) or isinstance(value, bool):
                return False
            return (kind == "number" or value == int(value)) and schema["minimum"] <= value <= schema["maximum"]
        case "string":
            return isinstance(value, str) and schema.get("minLength", 0) <= len(value) <= schema["maxLength"]
        case "array":
            inside = schema.get("minItems", 0) <= len(value) <= schema["maxItems"] if isinstance(value, list) else False
            return inside and all(fits(one, schema["items"]) for one in value)
        case _:
            if not isinstance(value, dict) or not {*schema["required"]} <= {*value} <= {*schema["properties"]}:
                return False
            return all(fits(one, schema["properties"][name]) for name, one in value.items())


@embedded
def test_answers_to_random_schemas_parse_and_fit_when_they_end() -> None:
    stream = Random(12)
    schemas = [random_schema(stream) for _ in range(300)]
    asked = [
        SamplingParams(
            max_tokens=100,
            temperature=stream.choice([0.0, 0.8, 1.2]),
            seed=seed,
            grammar=Grammar(kind="json_schema", text=json.dumps(one)),
        )
        for seed, one in enumerate(schemas)
    ]
    drafting = LLM(DEFAULT, "grammar+ngram", batch=16)
    found = drafting.generate([PROMPTS[seed % 3] for seed in range(300)], asked)
    ended = [(one, schema) for one, schema in zip(found, schemas, strict=True) if one.finish_reason == "stop"]
    assert len(ended) > 250
    for one, schema in ended:
        assert fits(json.loads(one.text), schema), (one.text, schema)


# --- on fakes: crowding, preemption, ends, failures ---


@pytest.mark.parametrize("name", ["chain", "tree", "mixed", "grammar", "both"])
def test_preemption_keeps_the_place_in_the_grammar(name: str) -> None:
    model = model_of()
    plain_ones = [answers(engine_of(model), [request])[0] for request in REQUESTS]
    engine = engine_of(model, drafters(model)[name], Limits(batch=4, chunk=5, cache_tokens=150))
    found = answers(engine, REQUESTS)
    assert engine.scheduler.preemptions > 0
    assert [one.generated for one in found] == [one.generated for one in plain_ones]
    assert all(map(whole, found))


def one_of(model, grammar: Grammar, drafter=None, **more: Any) -> Sequence:
    asked = SamplingParams(**{"max_tokens": 80, "temperature": 1.0, "seed": 3, "grammar": grammar, **more})
    return answers(engine_of(model, drafter), [([BOS, 70], asked)])[0]


def told(sequence: Sequence) -> str:
    return tokenizer().decode([token for token in sequence.generated if token != EOS])


def test_a_finished_grammar_leaves_the_end_alone_to_choose() -> None:
    model = model_of()
    for drafter in (None, TreeDrafter(model), drafters(model)["grammar"]):
        found = one_of(model, Grammar(kind="regex", text="the thin (a|b)"), drafter)
        assert found.generated[-1] == EOS
        assert found.finish_reason == "stop"
        assert told(found) in ("the thin a", "the thin b")


@pytest.mark.parametrize("ignored", [True, False])
def test_without_an_eos_a_finished_grammar_ends_the_answer(ignored: bool) -> None:
    model = model_of() if ignored else model_of(eos=())
    for drafter in (None, TreeDrafter(model), drafters(model)["grammar"]):
        found = one_of(model, Grammar(kind="regex", text="the thin (a|b)(in)?!"), drafter, ignore_eos=ignored)
        assert found.finish_reason == "stop"
        assert re.fullmatch("the thin (a|b)(in)?!", told(found))
        assert EOS not in found.generated


def test_an_eos_that_is_ignored_is_not_chosen_where_the_answer_might_end() -> None:
    found = one_of(model_of(), Grammar(kind="regex", text="[a-c]*"), ignore_eos=True, logit_bias={EOS: 100.0})
    assert found.finish_reason == "length"
    assert re.fullmatch("[a-c]{80}", told(found))


def test_a_bias_does_not_lift_what_is_not_allowed() -> None:
    letter = tokenizer().encode("z", add_special=False)[0]
    found = one_of(model_of(), Grammar(kind="regex", text="[a-c]{3,9}"), logit_bias={letter: 100.0}, max_tokens=30)
    assert re.fullmatch("[a-c]{3,9}", told(found))


def test_min_tokens_keeps_an_answer_from_ending_as_long_as_the_grammar_lets_it() -> None:
    free, narrow = (Grammar(kind="regex", text=text) for text in ("[a-c]*", "[a-c]{2}"))
    eager = {"logit_bias": {EOS: 100.0}, "min_tokens": 20}
    assert len(one_of(model_of(), free, **eager).generated) == 21
    found = one_of(model_of(), narrow, **eager)
    assert (len(found.generated), found.finish_reason) == (3, "stop")


def test_penalties_work_beneath_a_grammar() -> None:
    model, grammar = model_of(), Grammar(kind="regex", text="[a-h]{30}")
    for penalty in ({}, {"frequency_penalty": 2.0, "presence_penalty": 1.0, "repetition_penalty": 1.4}):
        plain_one = one_of(model, grammar, **penalty)
        assert one_of(model, grammar, TreeDrafter(model), **penalty).generated == plain_one.generated
        assert re.fullmatch("[a-h]{30}", told(plain_one))


def test_an_answer_may_be_cut_short_by_its_length_or_a_stop() -> None:
    cut = one_of(model_of(), WORDS, max_tokens=7)
    assert (len(cut.generated), cut.finish_reason) == (7, "length")
    stopped = one_of(model_of(), WORDS, stop=(" th",))
    assert stopped.finish_reason == "stop"


def test_an_answer_whose_grammar_gets_too_costly_ends_with_reason_length() -> None:
    greedy = Grammar(kind="regex", text="((((a{1,1000}){1,1000}){1,1000}){1,1000})")
    model = model_of()
    found = one_of(model, greedy, max_tokens=150, logit_bias={EOS: -100.0})
    assert found.finish_reason == "length"
    assert set(told(found)) == {"a"}
    assert len(found.generated) < 150


@pytest.mark.parametrize("at", [0, 2, 5])
def test_a_failed_step_leaves_the_grammar_at_the_committed_text(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a step fails, the next one continues from the committed text."""
    model = model_of()
    plain_one = one_of(model, WORDS)
    engine = engine_of(model, MixedDrafter(model))
    sequence = engine.add([BOS, 70], SamplingParams(max_tokens=80, temperature=1.0, seed=3, grammar=WORDS))
    honest, calls = engine.speculative.verifier, []

    def failing(*arguments: Any) -> Any:
        calls.append(honest(*arguments))
        if len(calls) == at + 1:
            raise RuntimeError("broken")
        return calls[-1]

    cutting, cuts = engine.stops.cut, []

    def cut_and_fail(*arguments: Any) -> Any:
        cuts.append(cutting(*arguments))
        if len(cuts) == at + 3:
            raise KeyboardInterrupt
        return cuts[-1]

    monkeypatch.setattr(engine.speculative, "verifier", failing)
    monkeypatch.setattr(engine.stops, "cut", cut_and_fail)
    failures = 0
    while engine.has_work:
        try:
            engine.step()
        except (RuntimeError, KeyboardInterrupt):
            failures += 1
    assert failures == 2
    assert sequence.generated == plain_one.generated


def test_a_grammar_that_cannot_be_used_is_a_refused_request() -> None:
    engine = engine_of(model_of())
    good, bad = WORDS, Grammar(kind="regex", text="(ab")
    answers(engine, [([BOS], SamplingParams(grammar=good, max_tokens=4))])
    with pytest.raises(RequestError, match="the regular expression cannot be used: unclosed group"):
        engine.add([BOS], SamplingParams(grammar=bad))
    assert not engine.has_work
    assert answers(engine, [([BOS], SamplingParams(grammar=good, max_tokens=4))])[0].finish_reason == "length"


def test_requests_with_and_without_a_grammar_share_a_step() -> None:
    model = model_of()
    free = SamplingParams(max_tokens=20, temperature=1.0, seed=8)
    mixed = [([BOS, 70], free), REQUESTS[1], ([BOS, 71], free), REQUESTS[2]]
    alone = [answers(engine_of(model), [one])[0].generated for one in mixed]
    for drafter in drafters(model).values():
        assert [one.generated for one in answers(engine_of(model, drafter), mixed)] == alone
