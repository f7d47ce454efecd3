"""Tools: grammars of answers that may call them, and calls parsed from text however it is split into pieces."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, Tokenizer

from paceline.models.embedded import DEFAULT
from paceline.models.grammar import grammars_of
from paceline.models.load import resolve
from paceline.models.tokenizer import Tokenizer as PacelineTokenizer
from paceline.params import Grammar
from paceline.serve.errors import APIError
from paceline.serve.tool_forms import HERMES, LLAMA, MISTRAL, MISTRAL_LIST, Form, form_of
from paceline.serve.tool_parsing import Arguments, CallBegun, CallEnded, Content
from paceline.serve.tool_prompt import spelled_out
from paceline.serve.tools import ToolPlan, plan, planned
from serve.fakes import FakeService

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "its name"}, "days": {"$ref": "#/$defs/days"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"days": {"type": "integer"}},
}
FORMS = {
    HERMES: "<tool_call> {{ tools }}",
    MISTRAL_LIST: "[AVAILABLE_TOOLS]{{ tools }}[/AVAILABLE_TOOLS] [TOOL_CALLS]",
    MISTRAL: "[TOOL_CALLS] [ARGS] {{ tools }}",
    LLAMA: "<|python_tag|> {{ tools }}",
}


def tool(name: str = "weather", parameters: Any = CITY, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


TOOLS = [
    tool(),
    tool("week", {"type": "object", "properties": {"day": {"enum": ["mon", "tue"]}}, "required": ["day"]}),
    tool("now", None),
]
PARIS = ("weather", '{"city": "Pa\\"}ris", "days": 3}')
MONDAY = ("week", '{"day": "mon"}')


def written(form: Form, *calls: tuple[str, str]) -> str:
    inner = "".join(form.between).join(form.before + name + form.middle + text + form.after for name, text in calls)
    return "".join(form.opening) + inner + "".join(form.closing)


@pytest.mark.parametrize("form", FORMS)
def test_the_engine_compiles_the_tool_grammar_of_every_form(form: Form):
    grammars = grammars_of(PacelineTokenizer(resolve(DEFAULT)))
    for choice in ("auto", "required"):
        grammar = plan(TOOLS, choice, True, FORMS[form]).grammar
        assert grammar is not None
        grammars.check(grammar)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(resolve(DEFAULT)) + "/tokenizer.json")


def verdict(grammar: Grammar | None, tokenizer: Tokenizer, text: str) -> str:
    """The state of `text`: "whole", "begun" if more must follow, or "refused"."""
    assert grammar is not None
    matcher = LLMatcher(LLTokenizer(tokenizer.to_str()), LLMatcher.grammar_from_lark(grammar.text), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    if matcher.try_consume_tokens(ids) < len(ids):
        return "refused"
    return "whole" if matcher.is_accepting() else "begun"


def read(made: ToolPlan, text: str, size: int) -> tuple[str, list[tuple[str, str]], list[int]]:
    """Content, calls and which of them ended, of a text fed `size` characters at a time."""
    parser = made.reader()
    events = [event for low in range(0, len(text), size) for event in parser.feed(text[low : low + size])] + parser.end()
    calls: list[list[str]] = []
    for event in events:
        if isinstance(event, CallBegun):
            assert event.index == len(calls)
            assert event.id.startswith("call_")
            calls.append([event.name, ""])
        elif isinstance(event, Arguments):
            calls[event.index][1] += event.text
    content = "".join(event.text for event in events if isinstance(event, Content))
    return content, [(name, text) for name, text in calls], [event.index for event in events if isinstance(event, CallEnded)]


def test_bounds_count_characters_in_every_script(tokenizer: Tokenizer):
    words = ["город" + str(at) for at in range(4000)]
    made = plan([tool("visit", {"type": "object", "properties": {"at": {"enum": words}}, "required": ["at"]})], "required", True)
    assert verdict(made.grammar, tokenizer, written(HERMES, ("visit", '{"at": "город17"}'))) == "whole"
    assert verdict(made.grammar, tokenizer, written(HERMES, ("visit", '{"at": "город4000"}'))) == "refused"
    told = plan([tool(description="погода")]).conversation([{"role": "user", "content": "hi"}])
    assert "погода" in told[0]["content"]


def test_only_tools_that_are_allowed_are_shown_and_called():
    made = plan(TOOLS, "required", True, FORMS[HERMES], allowed={"week"})
    assert [function["name"] for function in made.functions] == ["week"]
    assert [shown["function"]["name"] for shown in made.shown] == ["week"]
    assert made.grammar is not None
    assert "weather" not in made.grammar.text
    with pytest.raises(APIError, match="NaN"):
        plan([*TOOLS, tool("odd", {"x": float("nan")})], None, True, allowed={"week"})


@pytest.mark.parametrize("form", FORMS)
def test_template_tells_the_form(form: Form):
    assert form_of(FORMS[form]) == form


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages }}",
        "{% for tool in tools %}<|tool|>{{ tool }}{% endfor %}",
        "{{ tools }} <tool_call>{{ name }}<arg_key>{{ key }}</arg_key>",
        "{{ tools }} <tool_call><function={{ name }}>",
    ],
)
def test_a_template_of_no_known_form_gets_the_hermes_form(template: str):
    made = plan(TOOLS, template=template)
    assert form_of(template) is None
    assert (made.form, made.native, made.shown) == (HERMES, False, ())
    assert "<tool_call>" in made.conversation([{"role": "user", "content": "Rain?"}])[0]["content"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("choice", ["auto", "required", None])
def test_the_tool_grammar_accepts_allowed_calls_and_text_only(form: Form, choice: str | None, tokenizer: Tokenizer):
    grammar = plan(TOOLS, choice, True, FORMS[form]).grammar
    must = choice == "required"
    for text, wanted in [
        ("", "begun" if must else "whole"),
        ("It rains.", "refused" if must else "whole"),
        (written(form, PARIS), "whole"),
        (written(form, ("now", "{}")), "whole"),
        (written(form, MONDAY, PARIS), "whole" if form.many else "refused"),
        (written(form, ("weather", '{"city": 3}')), "refused"),
        (written(form, ("weather", '{"city": "x", "more": 1}')), "refused"),
        (written(form, ("weather", '{"days": 3}')), "refused"),
        (written(form, ("week", '{"day": "wed"}')), "refused"),
        (written(form, ("now", '{"a": 1}')), "refused"),
        (written(form, ("other", "{}")), "refused"),
        (written(form, PARIS)[:-1], "begun"),
    ]:
        assert verdict(grammar, tokenizer, text) == wanted, text
    if form.trigger and not must:
        assert verdict(grammar, tokenizer, "I see.\n" + written(form, PARIS)) == "whole"
        assert verdict(grammar, tokenizer, "I see.\n" + form.trigger + "no call") == "refused"


@pytest.mark.parametrize("form", FORMS)
def test_the_grammar_allows_one_call_only_where_parallel_calls_are_off(form: Form, tokenizer: Tokenizer):
    for choice, parallel in ((None, False), ({"type": "function", "function": {"name": "weather"}}, None)):
        grammar = plan(TOOLS, choice, parallel, FORMS[form]).grammar
        assert verdict(grammar, tokenizer, written(form, PARIS)) == "whole"
        assert verdict(grammar, tokenizer, written(form, PARIS, PARIS)) == "refused"
    assert verdict(grammar, tokenizer, written(form, MONDAY)) == "refused"


@pytest.mark.parametrize("form", FORMS)
def test_markers_that_are_special_tokens(form: Form, tokenizer: Tokenizer):
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    markers = [*form.markers, "<|python_tag|>"]
    tokenizer.add_special_tokens([AddedToken(marker, special=True, normalized=False) for marker in markers])
    vocabulary = tokenizer.get_vocab()
    made = plan(TOOLS, "auto", True, FORMS[form], special={marker: vocabulary[marker] for marker in markers})
    assert made.keeps_special
    for text, wanted in [
        ("It rains.", "whole"),
        (written(form, PARIS), "whole"),
        (written(form, MONDAY, PARIS), "whole" if form.many else "refused"),
        (written(form, ("weather", '{"city": 3}')), "refused"),
    ]:
        assert verdict(made.grammar, tokenizer, text) == wanted, text
    if form.trigger:
        assert verdict(made.grammar, tokenizer, "I see." + written(form, PARIS)) == "whole"
    else:
        assert verdict(made.grammar, tokenizer, "<|python_tag|>" + written(form, PARIS)) == "whole"


def test_a_special_token_begins_no_call_in_a_thought(tokenizer: Tokenizer):
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.add_special_tokens([AddedToken(marker, special=True, normalized=False) for marker in HERMES.markers])
    special = {marker: tokenizer.get_vocab()[marker] for marker in HERMES.markers}
    grammar = plan(TOOLS, "auto", True, FORMS[HERMES], special=special, thoughts=True).grammar
    call = written(HERMES, PARIS)
    for text, wanted in [
        (call, "whole"),
        ("I see. " + call, "whole"),
        ("<think>Hm", "whole"),
        ("<think>Hm" + call, "refused"),
        ("<think>Hm</think>So: " + call, "whole"),
    ]:
        assert verdict(grammar, tokenizer, text) == wanted, text


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_tool_calls_are_read_from_text_in_pieces_of_any_size(form: Form, size: int):
    made = plan(TOOLS, "auto", True, FORMS[form])
    assert read(made, written(form, PARIS), size) == ("", [PARIS], [0])
    assert read(made, written(form, PARIS, MONDAY), size)[1] == [PARIS, MONDAY] or not form.many
    assert read(made, "It rains < 3.\n", size) == ("It rains < 3.\n", [], [])
    assert read(made, "", size) == ("", [], [])
    cut = written(form, PARIS)
    cut = cut[: cut.index('"}ris')]
    assert read(made, cut, size) == ("", [("weather", '{"city": "Pa\\')], [])
    other = written(form, ("other", '{"a": 1}'))
    assert read(made, other, size) == (other, [], [])
    if form.trigger:
        assert read(made, "I see.\n" + written(form, PARIS) + "\nSo.", size) == ("I see.\nSo.", [PARIS], [0])
        assert read(made, f"a {form.trigger} b!", size) == (f"a {form.trigger} b!", [], [])
        assert read(made, f"a{form.trigger}" + form.before[:5], size) == ("a", [], [])
        begun = "a" + form.trigger[:-1]
        assert read(made, begun, size) == (begun, [], [])


@pytest.mark.parametrize("form", FORMS)
def test_any_text_reads_the_same_however_it_is_cut(form: Form):
    made = plan(TOOLS, "auto", True, FORMS[form])
    pieces = [
        *form.opening,
        *form.between,
        form.before,
        form.middle,
        form.after,
        *form.closing,
        "now",
        "{}",
        "{",
        "a",
        " ",
        '"',
        "<",
    ]
    draws = random.Random(5)
    for _ in range(300):
        text = "".join(draws.choices([*pieces, written(form, PARIS)], k=12))
        whole = read(made, text, 10_000)
        assert all(read(made, text, size) == whole for size in (1, 3, 8)), text


def test_blanks_of_a_call_may_differ():
    made = plan(TOOLS)
    now = '<tool_call>{"name":"now","arguments":{}}</tool_call>'
    week = '<tool_call>\n {"name" : "week",\n"arguments":\n{"day": "mon"}}\n</tool_call>'
    assert read(made, now + week, 5) == ("", [("now", "{}"), MONDAY], [0, 1])
    blanks = "<tool_call>" + " " * 5000
    assert read(made, blanks, 100)[0].strip() == "<tool_call>"


def test_arguments_come_as_they_are_written():
    parser = plan(TOOLS).reader("toolu_")
    begun = parser.feed('well <tool_call>\n{"name": "weather", "arguments": {"ci')
    assert begun[0] == Content("well")
    assert isinstance(begun[1], CallBegun)
    assert begun[1].id.startswith("toolu_")
    assert begun[2] == Arguments(0, '{"ci')
    assert parser.feed('ty": "') == [Arguments(0, 'ty": "')]
    assert parser.feed('x"}}\n</tool') == [Arguments(0, 'x"}'), CallEnded(0)]
    assert parser.feed("_call>") == parser.end() == []


def test_tool_choice_none_shows_no_tools_and_reads_no_calls():
    made = plan(TOOLS, "none", True, FORMS[HERMES])
    assert made.grammar is None
    assert made.shown == ()
    text = written(HERMES, PARIS)
    assert read(made, text, 4) == (text, [], [])


def test_templates_that_know_tools_are_shown_them():
    made = plan([tool(strict=True, description="rain?")], "auto", True, FORMS[HERMES])
    assert made.shown == ({"type": "function", "function": {"name": "weather", "description": "rain?", "parameters": CITY}},)
    messages = [{"role": "tool", "tool_call_id": "a", "content": "3"}]
    assert made.conversation(messages) == messages


def test_other_templates_are_told_of_tools_in_text():
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich"}}}
    told = plan(TOOLS, "required").conversation(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Rain?"},
            {"role": "assistant", "content": "", "tool_calls": [call, call]},
            {"role": "tool", "tool_call_id": "a", "content": "yes"},
            {"role": "tool", "tool_call_id": "b", "content": "no"},
        ]
    )
    assert [message["role"] for message in told] == ["system", "user", "assistant", "user"]
    assert told[0]["content"].endswith("Answer with a call.\n\nBe brief.")
    listed = [json.loads(line) for line in told[0]["content"].split("<tools>\n")[1].split("\n</tools>")[0].splitlines()]
    assert [one["function"]["name"] for one in listed] == ["weather", "week", "now"]
    once = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
    assert told[2]["content"] == f"{once}\n{once}"
    assert told[3] == {
        "role": "user",
        "content": "<tool_response>\nyes\n</tool_response>\n<tool_response>\nno\n</tool_response>",
    }
    assert plan([]).conversation(told) == told
    assert plan(TOOLS).conversation([{"role": "user", "content": "a"}])[0]["role"] == "system"


def test_many_long_results_are_joined_once():
    """Repeated concatenation would copy 80 GB."""
    result = {"role": "tool", "tool_call_id": "a", "content": "a" * 10_000}
    began = time.process_time()
    (told,) = spelled_out([result] * 4096, [], must=False)
    assert time.process_time() - began < 1
    assert told["content"].count("<tool_response>") == 4096


GEMMA = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"


def test_a_template_without_a_system_message_is_told_in_what_the_user_says_first():
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich"}}}
    told = plan(TOOLS, template=GEMMA).conversation(
        [
            {"role": "user", "content": "Rain?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a", "content": "yes"},
            {"role": "user", "content": "And snow?"},
        ]
    )
    assert [message["role"] for message in told] == ["user", "assistant", "user"], "roles alternate"
    assert told[0]["content"].startswith("You may call functions.")
    assert told[0]["content"].endswith("Rain?")
    assert told[2]["content"] == "<tool_response>\nyes\n</tool_response>\nAnd snow?"


def test_a_template_that_looks_for_tools_in_a_message_is_told_in_words():
    template = "{% if message['tools'] is not none and 'tools' in message %}{{ message.tools }}{% endif %}"
    made = plan(TOOLS, template=template)
    assert not made.native
    assert "weather" in made.conversation([{"role": "user", "content": "a"}])[0]["content"]
    for template in ("{% if tools %}", "{%- for tool in tools %}", "{{ tools | tojson }}", "{%if not tools is defined%}"):
        assert plan(TOOLS, template=f"{template} <tool_call>").native


def test_calls_have_the_ids_that_a_template_wants():
    template = "[TOOL_CALLS]{{ tools }}{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}"
    call = {"type": "function", "function": {"name": "now", "arguments": {}}}
    said = [
        {"role": "assistant", "tool_calls": [{"id": "call_0123456789", **call}, {"id": "abcdefg12", **call}]},
        {"role": "tool", "tool_call_id": "call_0123456789", "content": "1"},
        {"role": "tool", "tool_call_id": "abcdefg12", "content": "2"},
    ]
    asked, first, second = plan(TOOLS, template=template).conversation(said)
    ids = [call["id"] for call in asked["tool_calls"]]
    assert ids == [first["tool_call_id"], second["tool_call_id"]]
    assert len(ids[0]) == 9
    assert ids[0].isalnum()
    assert ids[1] == "abcdefg12"
    assert said[0]["tool_calls"][0]["id"] == "call_0123456789"


def test_an_answer_that_calls_nothing_keeps_to_a_schema(tokenizer: Tokenizer):
    answer = Grammar(kind="json_schema", text='{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}')
    for form in (HERMES, MISTRAL, MISTRAL_LIST):
        made = plan(TOOLS, "auto", True, FORMS[form], answer=answer)
        assert verdict(made.grammar, tokenizer, '{"a": 1}') == "whole"
        assert verdict(made.grammar, tokenizer, "It rains") == "refused"
        assert verdict(made.grammar, tokenizer, written(form, PARIS)) == "whole"
        assert read(made, '{"a": 1}', 3) == ('{"a": 1}', [], [])
    assert plan(TOOLS, "none", answer=answer).grammar == answer
    with pytest.raises(APIError, match="look like JSON"):
        plan(TOOLS, "auto", True, FORMS[LLAMA], answer=answer)
    with pytest.raises(APIError, match="other than a JSON schema"):
        plan(TOOLS, answer=Grammar(kind="regex", text="a"))


def test_a_schema_may_be_true_or_false(tokenizer: Tokenizer):
    made = plan(TOOLS, "auto", answer=Grammar(kind="json_schema", text="true"))
    assert verdict(made.grammar, tokenizer, '{"a": [1]}') == "whole"
    assert verdict(made.grammar, tokenizer, written(HERMES, PARIS)) == "whole"
    with pytest.raises(APIError, match="nothing keeps to"):
        plan(TOOLS, "auto", answer=Grammar(kind="json_schema", text="false"))


def test_schema_keywords_that_no_grammar_supports_are_dropped_unless_strict(tokenizer: Tokenizer):
    odd = {"type": "object", "properties": {"a": {"type": "string", "not": {"const": "b"}}}}
    assert verdict(plan([tool("f", odd)]).grammar, tokenizer, written(HERMES, ("f", '{"a": "b"}'))) == "whole"
    grammar = plan([tool("f", odd, strict=True)]).grammar
    assert grammar is not None
    assert LLMatcher(LLTokenizer(tokenizer.to_str()), LLMatcher.grammar_from_lark(grammar.text), log_level=0).is_error()


class CompilingService(FakeService):
    """Compiles grammars, as the engine does."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._vocabulary = LLTokenizer(tokenizer.to_str())

    async def check_grammar(self, grammar: Grammar) -> None:
        matcher = LLMatcher(self._vocabulary, LLMatcher.grammar_from_lark(grammar.text), log_level=0)
        if matcher.is_error():
            raise APIError(400, matcher.get_error())


def test_a_pattern_that_no_grammar_can_say_is_left_out_unless_strict(tokenizer: Tokenizer):
    service = CompilingService(tokenizer)
    strong = {"type": "string", "pattern": "^(?=.*[A-Z]).{3,}$", "maxLength": 4}
    ahead = {"type": "object", "properties": {"pattern": strong, "n": {"type": "string", "pattern": "^a+$"}}}
    plain = {"type": "object", "properties": {"n": ahead["properties"]["n"]}}
    made = asyncio.run(planned(service, [tool("f", ahead), tool("g", plain, strict=True)]))
    for arguments, found in (('{"pattern": "abc"}', "whole"), ('{"n": "b"}', "whole"), ('{"pattern": "abcde"}', "refused")):
        assert verdict(made.grammar, tokenizer, written(HERMES, ("f", arguments))) == found, arguments
    assert verdict(made.grammar, tokenizer, written(HERMES, ("g", '{"n": "b"}'))) == "refused"
    assert made.functions[0]["parameters"] == ahead
    with pytest.raises(APIError, match="look-ahead"):
        asyncio.run(planned(service, [tool("f", ahead, strict=True)]))
    with pytest.raises(APIError, match="str"):
        asyncio.run(planned(service, [tool("f", {"type": "object", "properties": {"a": {"type": "str", "pattern": "a"}}})]))


def test_the_tool_whose_schema_cannot_be_used_is_named(tokenizer: Tokenizer):
    odd = {"type": "object", "properties": {"a": {"type": "any"}}}
    with pytest.raises(APIError, match=re.escape("the schema of the tool 'odd' cannot be used: Invalid type: any")) as caught:
        asyncio.run(planned(CompilingService(tokenizer), [*TOOLS, tool("odd", odd)]))
    assert (caught.value.status, caught.value.param) == (400, "tools")


def test_a_grammar_holds_as_many_tools_as_are_taken():
    pair = {f"a property of some length {at}": {"type": "integer", "minimum": at} for at in range(4)}
    schema = {"type": "object", "properties": pair, "required": list(pair)}
    grammar = plan([tool(f"tool_number_{at}", schema) for at in range(128)], "auto", True).grammar
    assert grammar is not None
    assert len(grammar.text) > 65536
    grammars_of(PacelineTokenizer(resolve(DEFAULT))).check(grammar)


def test_properties_may_be_called_as_keywords_are(tokenizer: Tokenizer):
    schema = {"type": "object", "properties": {"title": {"type": "string", "title": "x"}, "// # %json": {"const": "\n\"'<end>"}}}
    grammar = plan([tool("f", schema | {"required": ["title", "// # %json"], "x-guidance": 3})]).grammar
    arguments = json.dumps({"title": "a", "// # %json": "\n\"'<end>"})
    assert verdict(grammar, tokenizer, written(HERMES, ("f", arguments))) == "whole"


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    ("tools", "choice", "said"),
    [
        ([], "required", "needs 'tools'"),
        (TOOLS, {"type": "function", "function": {"name": "other"}}, "not among 'tools'"),
        (TOOLS, "any", "'tool_choice' must be"),
        (TOOLS, {"type": "custom"}, "'tool_choice' must be"),
        ([tool(), tool()], None, "the name of another"),
        ([tool("a b")], None, "needs a name"),
        ([tool("a\n")], None, "needs a name"),
        ([tool("x" * 129)], None, "needs a name"),
        ([tool(f"t{at}") for at in range(129)], None, "at most 128"),
        ([tool("f", nested(20))], None, "32 levels"),
        ([tool("f", nested(2000))], None, "32 levels"),
        ([tool("f", {"type": "array"})], None, "type object"),
        ([tool("f", {"maximum": float("nan")})], "none", "NaN"),
        ([tool("f", {"enum": ["x" * 70000]})], None, "65536"),
    ],
)
def test_refused(tools: list[dict[str, Any]], choice: Any, said: str):
    with pytest.raises(APIError, match=re.escape(said)) as caught:
        plan(tools, choice)
    assert caught.value.status == 400
    assert caught.value.param


def test_long_descriptions_are_no_part_of_the_grammar():
    schema = {"type": "object", "properties": {f"p{at}": {"type": "string", "description": "x" * 500} for at in range(100)}}
    grammar = plan([tool("f", schema)]).grammar
    assert grammar is not None
    assert len(grammar.text) < 6000


class MarkedService(FakeService):
    """A byte is a token, and [TOOL_CALLS] is a special one."""

    async def encode(self, text: str, add_special: bool = True) -> list[int]:
        return [300] if text == "[TOOL_CALLS]" else await super().encode(text, add_special)

    def piece(self, token: int) -> bytes:
        return b"[TOOL_CALLS]" if token == 300 else super().piece(token)


def test_special_tokens_of_a_service_are_found():
    service = MarkedService(chat_template=FORMS[MISTRAL_LIST])
    made = asyncio.run(planned(service, TOOLS))
    assert made.special == {"[TOOL_CALLS]": 300}
    assert made.grammar in service.grammars
    assert not asyncio.run(planned(FakeService(), TOOLS)).keeps_special
    assert asyncio.run(planned(FakeService(), None)).grammar is None
    with pytest.raises(APIError, match="no good"):
        asyncio.run(planned(FakeService(refused_grammar="no good"), TOOLS))


def test_a_busy_grammar_compiler_is_not_asked_again_with_another_form():
    class Busy(FakeService):
        async def check_grammar(self, grammar: Grammar) -> None:
            self.grammars.append(grammar)
            raise APIError(503, "busy", code="overloaded")

    service = Busy()
    with pytest.raises(APIError, match="busy") as refused:
        asyncio.run(planned(service, TOOLS))
    assert (refused.value.status, len(service.grammars)) == (503, 1)
