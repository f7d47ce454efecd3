"""Tools of a request: how they are shown to the model, the grammar of its answer, and how the answer is parsed."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence as Many
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Any

from paceline.constraint import GrammarError
from paceline.models.grammar import thought_first
from paceline.models.schemas import DEEPEST, levels_of
from paceline.params import Grammar
from paceline.serve.answer_reader import AnswerReader
from paceline.serve.asking import Service
from paceline.serve.errors import APIError, invalid
from paceline.serve.structured import check
from paceline.serve.thoughts import CLOSES, thinks
from paceline.serve.tool_forms import HERMES, PYTHON_TAG, Form, form_of
from paceline.serve.tool_grammar import grammar_of
from paceline.serve.tool_parsing import PlainText, ToolParser
from paceline.serve.tool_prompt import has_system, knows_tools, spelled_out, wants_short_ids
from paceline.serve.wire.common import printable

MOST_TOOLS = 128
LONGEST_SCHEMAS = 65536
"""Characters of all schemas together, as JSON."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}\Z")


@dataclass(frozen=True)
class ToolPlan:
    """How the tools of one request are handled.

    functions: name, description, parameters and strict of those that may be called. shown: tools for the template, as
    `Service.chat` takes them. grammar: of the answer; None if it is not constrained. special: ids of the pieces of calls that are
    special tokens. must: whether the answer must be a call. free: whether the grammar also allows any plain text. native, system,
    short_ids: whether the template shows tools, takes a system message, and requires call ids of nine letters and digits. opened:
    whether the answer begins inside a thought; None if no thought is expected. closing: the id of </think> if it is a special
    token.
    """

    form: Form
    functions: tuple[Mapping[str, Any], ...] = ()
    shown: tuple[Mapping[str, Any], ...] = ()
    grammar: Grammar | None = None
    special: Mapping[str, int] | None = None
    must: bool = False
    free: bool = False
    native: bool = False
    system: bool = True
    short_ids: bool = False
    opened: bool | None = None
    closing: int | None = None

    @property
    def keeps_special(self) -> bool:
        """Whether calls or the end of a thought can only be recognized in text with special tokens:
        `SamplingParams.skip_special_tokens` must then be False."""
        return bool(self.functions and self.special) or self.closing is not None

    def reader(self, prefix: str = "call_") -> AnswerReader:
        """A reader for one answer. prefix: of the ids of its calls."""
        names = {function["name"] for function in self.functions}
        return AnswerReader(ToolParser(self.form, names, prefix) if names else PlainText(), self.opened)

    def conversation(self, messages: Many[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Messages as the template takes them. For a template without tool support, the prompt describes the tools as JSON and
        the form of a call; calls and results of earlier turns become text."""
        if self.native:
            return [_with_short_ids(message) if self.short_ids else dict(message) for message in messages]
        return spelled_out(messages, self.functions, must=self.must, system=self.system)


async def planned(
    service: Service,
    tools: Many[Mapping[str, Any]] | None,
    tool_choice: str | Mapping[str, Any] | None = None,
    parallel: bool | None = None,
    answer: Grammar | None = None,
    allowed: Collection[str] | None = None,
) -> ToolPlan:
    """`plan` for the template and vocabulary of a service, with a grammar that compiles; without patterns if they prevent that.
    Raises APIError: 400 if it does not compile even so, 503 if no grammar can be compiled now."""
    template = service.chat_template
    special = await _special(service, form_of(template or "") or HERMES) if tools else {}
    planned_as = partial(
        plan,
        tools,
        tool_choice,
        parallel,
        template,
        special=special,
        answer=answer,
        allowed=allowed,
        thoughts=thinks(template),
    )
    made = planned_as()
    if made.grammar is None or made.grammar is answer:
        return made
    refusal = await _refusal(service, made)
    if refusal is None:
        return made
    if refusal.status != 400:
        raise refusal
    # a pattern may be unsupported, for example a lookahead
    plainer = planned_as(patterns=False)
    if plainer.grammar == made.grammar or await _refusal(service, plainer) is not None:
        alone = (planned_as(allowed={function["name"]}, patterns=False) for function in made.functions)
        raise await _blaming(service, alone) or refusal
    return plainer


async def _blaming(service: Service, plans: Iterable[ToolPlan]) -> APIError | None:
    """The error of the first plan whose grammar does not compile. plans: with one tool each."""
    for made in plans:
        refusal = await _refusal(service, made)
        if refusal is not None and refusal.status == 400:
            # leave out the position in the grammar, which the client did not write
            reason = refusal.message.rpartition("cannot be used: ")[2].rpartition("failed to compile JSON schema: ")[2]
            return invalid(f"the schema of the tool '{made.functions[0]['name']}' cannot be used: {reason}", "tools")
    return None


async def behind_thought(service: Service, made: ToolPlan, param: str) -> ToolPlan:
    """The plan for an answer that begins inside a thought; its grammar applies after the thought. param: the field that sets the
    grammar. Raises APIError (400)."""
    closing = await service.special_id(CLOSES)
    if made.grammar is None:
        return replace(made, opened=True, closing=closing)
    try:
        grammar = thought_first(made.grammar, CLOSES if closing is None else closing, free=made.free)
    except GrammarError as error:
        raise invalid(str(error), param) from None
    await check(service, grammar, param)
    return replace(made, grammar=grammar, opened=True, closing=closing)


async def _refusal(service: Service, made: ToolPlan) -> APIError | None:
    """The error of compiling the plan's grammar, if any."""
    try:
        await check(service, made.grammar, "tools")
    except APIError as error:
        return error
    return None


def plan(
    tools: Many[Mapping[str, Any]] | None,
    tool_choice: str | Mapping[str, Any] | None = None,
    parallel: bool | None = None,
    template: str | None = None,
    *,
    special: Mapping[str, int] | None = None,
    answer: Grammar | None = None,
    allowed: Collection[str] | None = None,
    patterns: bool = True,
    thoughts: bool = False,
) -> ToolPlan:
    """Tools and choice as /v1/chat/completions has them: {"type": "function", "function": {...}}; "none", "auto", "required" or
    {"type": "function", "function": {"name": ...}}.

    If the template shows no tools, or uses a form unknown here, the prompt describes them, with calls in the form of Hermes. With
    "none" the model is not shown the tools, and nothing it writes is a call. Arguments always match their schema; parts of it
    that no grammar can express are ignored, unless the tool is `strict`: then they are refused. parallel: False for at most one
    call. answer: the grammar of an answer without a call. special: ids of markers that are special tokens. allowed: names of
    tools that may be called, all others are ignored; None for all. patterns, thoughts: as in `grammar_of`.

    Raises APIError (400) for a choice that does not fit the tools, and for schemas beyond the limits.
    """
    form = form_of(template or "") if knows_tools(template) else None
    # with a template in an unknown form the model would write calls that cannot be parsed
    native, form = form is not None, form or HERMES
    bare = ToolPlan(form, native=native, system=has_system(template), short_ids=wants_short_ids(template))
    functions = _functions(tools or ())
    must, named = _choice(tool_choice, functions)
    if strangers := set(allowed or ()) - {function["name"] for function in functions}:
        raise invalid(f"'tool_choice' allows '{printable(min(strangers))}', which is not among 'tools'", "tool_choice")
    if not functions or tool_choice == "none":
        return replace(bare, grammar=answer)
    if allowed is not None:
        functions = [function for function in functions if function["name"] in allowed]
    if named:
        functions = [function for function in functions if function["name"] == named]
    schema = None
    if answer is not None and not must:
        if answer.kind != "json_schema":
            raise invalid("tools that may be left uncalled exclude structured output other than a JSON schema", "tools")
        schema = json.loads(answer.text)
        if schema is False:
            raise invalid("nothing keeps to a schema that is 'false'", "tools")
        # the schema `true` allows everything
        schema = {} if schema is True else schema
    held = {piece: token for piece, token in (special or {}).items() if piece in (*form.markers, PYTHON_TAG)}
    several = parallel is not False and named is None
    grammar = grammar_of(
        form, functions, free=not must, several=several, special=held, answer=schema, patterns=patterns, thoughts=thoughts
    )
    shown = tuple({"type": "function", "function": _without_strict(function)} for function in functions) if native else ()
    return replace(
        bare, functions=tuple(functions), shown=shown, grammar=grammar, special=held, must=must, free=not must and answer is None
    )


def _with_short_ids(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with call ids that Mistral's templates accept; equal ids stay equal."""
    shortened = dict(message)
    if calls := shortened.get("tool_calls"):
        shortened["tool_calls"] = [{**call, "id": _short(call.get("id") or "")} for call in calls]
    if "tool_call_id" in shortened:
        shortened["tool_call_id"] = _short(shortened["tool_call_id"] or "")
    return shortened


def _short(call_id: str) -> str:
    return call_id if _SHORT_ID.match(call_id) else blake2b(call_id.encode(errors="replace"), digest_size=5).hexdigest()[:9]


def _choice(choice: str | Mapping[str, Any] | None, functions: Many[Mapping[str, Any]]) -> tuple[bool, str | None]:
    """Whether the answer must be a call, and the name of the only tool allowed, if any."""
    if choice in (None, "none", "auto"):
        return False, None
    if not functions:
        raise invalid("'tool_choice' needs 'tools'", "tool_choice")
    if choice == "required":
        return True, None
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        name = (choice.get("function") or {}).get("name")
        if any(function["name"] == name for function in functions):
            return True, name
        raise invalid("'tool_choice' names a tool that is not among 'tools'", "tool_choice")
    raise invalid('\'tool_choice\' must be "none", "auto", "required" or a function', "tool_choice")


def _functions(tools: Many[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if len(tools) > MOST_TOOLS:
        raise invalid(f"at most {MOST_TOOLS} tools are taken", "tools")
    functions: list[dict[str, Any]] = []
    names: set[str] = set()
    length = 0
    for at, tool in enumerate(tools):
        function, place = tool["function"], f"tools[{at}]"
        name, parameters = function["name"], function.get("parameters")
        if not _NAME.match(name):
            raise invalid(f"'{place}' needs a name of up to 128 letters, digits, _ and -", place)
        if name in names:
            raise invalid(f"'{place}' has the name of another tool", place)
        names.add(name)
        # as in OpenAI's API, a function without parameters takes none
        schema = {"type": "object", "properties": {}, "additionalProperties": False} if parameters is None else parameters
        if levels_of(schema) > DEEPEST:
            raise invalid(f"the schema of '{place}' is more than {DEEPEST} levels deep", place)
        try:
            length += len(json.dumps(schema, ensure_ascii=False, allow_nan=False))
        except ValueError:
            raise invalid(f"the schema of '{place}' holds what JSON cannot: NaN or an infinity", place) from None
        if length > LONGEST_SCHEMAS:
            raise invalid(f"the schemas of all tools have more than {LONGEST_SCHEMAS} characters", "tools")
        if schema.get("type", "object") != "object":
            raise invalid(f"the schema of '{place}' must be of type object", place)
        functions.append({**function, "parameters": {"type": "object", **schema}})
    return functions


def _without_strict(function: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in function.items() if name != "strict" and value is not None}


async def _special(service: Service, form: Form) -> dict[str, int]:
    """Markers of a form that are special tokens of the model's vocabulary, with their ids."""
    found = {marker: await service.special_id(marker) for marker in (*form.markers, PYTHON_TAG)}
    return {marker: token for marker, token in found.items() if token is not None}
