"""The request of POST /v1/responses, and its items as a chat template reads them."""

from __future__ import annotations

from itertools import takewhile
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, Tag, model_validator

from paceline.params import Grammar
from paceline.serve.structured import only, schema_of
from paceline.serve.wire.chat import FunctionName
from paceline.serve.wire.common import Name, Text, Wire, arguments, misfit, printable, refusal, up_to
from paceline.serve.wire.generation import FOREIGN, Generation
from paceline.serve.wire.typed import OfType, by_kind, in_words

LOGPROBS, ENCRYPTED = "message.output_text.logprobs", "reasoning.encrypted_content"


class Part(OfType):
    """A part of a message. annotations, logprobs, parsed: of an earlier answer that is sent back; they say nothing to the
    model."""

    known: ClassVar = ("input_text", "output_text", "reasoning_text", "refusal")

    type: Literal["input_text", "output_text", "reasoning_text", "refusal"]
    text: Text | None = None
    refusal: Text | None = None
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None
    parsed: Any = None

    @model_validator(mode="after")
    def _coherent(self) -> Part:
        if (self.text is None) == (self.type != "refusal") or (self.refusal is None) == (self.type == "refusal"):
            raise misfit("refusal" if self.type == "refusal" else "text", "is what a part of this type holds, and nothing else")
        return self


Content = Annotated[
    Annotated[Text, Tag("str")] | Annotated[list[Part], up_to(1024), Tag("list")],
    by_kind("must be a text or a list of parts"),
]
_BELONG = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("output",),
    "reasoning": (),
}
_MAY_HAVE = {"reasoning": ("content",), "function_call_output": ("call_id", "name")}


class Item(OfType):
    """A message, a call that the model made, what came of it, or what the model thought before either. id, status: of items that
    an earlier answer held. summary, encrypted_content: of a thought, whose content alone is read. parsed_arguments: what OpenAI's
    clients read `arguments` as, and send back. namespace: of a function. An output without call_id is what an agent tells the
    model by itself, under the name of a function."""

    known: ClassVar = tuple(_BELONG)
    reasons: ClassVar = {"item_reference": "nothing is stored here; send the items themselves, with 'store' false"}

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    id: Name | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    phase: Name | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: Content | None = None
    call_id: Name | None = None
    name: FunctionName | None = None
    namespace: FunctionName | None = None
    arguments: Text | None = None
    output: Annotated[Content | None, in_words(("input_image", "input_file"), "input_text")] = None
    parsed_arguments: Any = None
    summary: Annotated[list[Any], up_to(1024)] | None = None
    encrypted_content: Text | None = None

    @model_validator(mode="after")
    def _coherent(self) -> Item:
        thought = self.type == "reasoning"
        for field, owner in (("summary", "reasoning"), ("encrypted_content", "reasoning"), ("parsed_arguments", "function_call")):
            if getattr(self, field) is not None and self.type != owner:
                raise misfit(field, f"is no part of an item of type '{self.type}'")
        if any((part.type == "reasoning_text") != thought for part in _parts(self.content) + _parts(self.output)):
            raise misfit("content", "holds a part that belongs to another type of item")
        for field in ("role", "content", "call_id", "name", "arguments", "output"):
            if field in _MAY_HAVE.get(self.type, ()):
                continue
            if (getattr(self, field) is not None) != (field in _BELONG[self.type]):
                needs = field in _BELONG[self.type]
                raise misfit(field, f"{'is missing from' if needs else 'is no part of'} an item of type '{self.type}'")
        if self.namespace is not None and self.name is None:
            raise misfit("namespace", f"is no part of an item of type '{self.type}'")
        if self.type == "function_call_output" and self.call_id is None and self.name is None:
            raise misfit("call_id", f"is missing from an item of type '{self.type}'")
        return self


class FunctionTool(OfType):
    """A function that the model may call. parameters: the JSON schema of its arguments. namespace, namespace_description: of the
    tool of that type which lists it."""

    known: ClassVar = ("function", "namespace")
    unsupported: ClassVar = {"defer_loading": "all tools are shown", "output_schema": "results are text"}

    type: Literal["function"]
    name: FunctionName
    namespace: FunctionName | None = None
    namespace_description: Text | None = None
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def own_name(self) -> str:
        """The name by which the model calls it."""
        return own_name(self.namespace, self.name)


_OF_NAMESPACE = {"namespace", "namespace_description"}
"""Fields of a function that it does not have itself."""


def own_name(namespace: str | None, name: str) -> str:
    return f"{namespace}__{name}" if namespace else name


_HOSTED = ("web_search", "image_generation")
"""How the types of tools begin that a server runs itself. There are none here, so the model is not offered them. Codex lists them
in every request."""


def _functions(tools: Any) -> Any:
    """The functions among the tools, without those of a server's own, and with those of namespaces."""
    if not isinstance(tools, list):
        return tools
    found = []
    for tool in tools:
        kind, within = (tool.get("type"), tool.get("tools")) if isinstance(tool, dict) else (None, None)
        if kind == "namespace" and isinstance(within, list) and all(isinstance(one, dict) for one in within):
            of = {"namespace": tool.get("name"), "namespace_description": tool.get("description")}
            found += [{**one, **of} for one in within]
        elif not str(kind).startswith(_HOSTED):
            found.append(tool)
    return found


class ChosenTool(OfType):
    """One function that must be called, or some that may."""

    known: ClassVar = ("function", "allowed_tools")

    type: Literal["function", "allowed_tools"]
    name: FunctionName | None = None
    namespace: Name | None = None
    mode: Literal["auto", "required"] | None = None
    tools: Annotated[list[dict[str, Any]], up_to(128, least=1)] | None = None

    @model_validator(mode="after")
    def _coherent(self) -> ChosenTool:
        one = self.type == "function"
        if (self.name is not None) != one:
            raise misfit("name", "belongs to the type 'function', which needs it")
        if self.namespace is not None and not one:
            raise misfit("namespace", "belongs to the type 'function'")
        if (self.mode is None or self.tools is None) != one or (one and (self.mode or self.tools)):
            raise misfit("tools", "belongs, with 'mode', to the type 'allowed_tools', which needs both")
        return self


class TextFormat(Wire):
    """What an answer looks like. It keeps to its schema whatever `strict` says."""

    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    description: Text | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _coherent(self) -> TextFormat:
        if (self.type == "json_schema") != (self.schema_ is not None):
            raise misfit("schema", "belongs to the type 'json_schema', which needs it")
        if self.type == "json_schema" and self.name is None:
            raise misfit("name", "is missing")
        return self


class TextOptions(Wire):
    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class Reasoning(Wire):
    """How much a model thinks. Thoughts are told as they are, and never summed up."""

    effort: Name | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ResponsesRequest(Generation):
    """A conversation that the model answers. Nothing is stored: each request holds all of it."""

    unsupported: ClassVar = FOREIGN | {
        "chat_template_kwargs": "it belongs to chat completions",
        "n": "a response is one answer",
        "best_of": "a response is one answer",
        "max_tokens": "use 'max_output_tokens'",
        "messages": "use 'input'",
        "response_format": "use 'text.format'",
        "logprobs": f"use 'include' with '{LOGPROBS}'",
        "prompt_logprobs": "it belongs to chat and text completions",
        "return_token_ids": "it belongs to chat and text completions",
        "context_management": "nothing is left out of a conversation",
        "conversation": "nothing is stored here; send all of it as 'input'",
        "max_tool_calls": "there are no built-in tools",
        "moderation": "answers are not moderated",
        "previous_response_id": "nothing is stored here; send all of the conversation as 'input'",
        "prompt": "there are no stored prompts",
    }

    input: Annotated[
        Annotated[Text, Tag("str")] | Annotated[list[Item], up_to(4096, least=1), Tag("list")],
        by_kind("must be a text or a list of items"),
    ]
    instructions: Text | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=2**31)] | None = None
    text: TextOptions | None = None
    tools: Annotated[Annotated[list[FunctionTool], up_to(128)] | None, BeforeValidator(_functions)] = None
    tool_choice: (
        Annotated[
            Annotated[Literal["none", "auto", "required"], Tag("str")] | Annotated[ChosenTool, Tag("dict")],
            by_kind("must be a word or an object"),
        ]
        | None
    ) = None
    parallel_tool_calls: bool | None = None
    include: Annotated[list[Name], up_to(16)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    reasoning: Reasoning | None = None
    truncation: Name | None = None
    background: bool | None = None
    prompt_cache_options: dict[str, Any] | None = None
    client_metadata: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _as_a_server_without_memory(self) -> ResponsesRequest:
        if self.background:
            raise refusal("background", "nothing is stored here; the answer comes with the request")
        if self.truncation not in (None, "disabled"):
            raise refusal("truncation", "nothing is left out of a conversation")
        for name in self.include or ():
            if name not in (LOGPROBS, ENCRYPTED):
                raise refusal("include", f"there is no '{printable(name)}' here, only {LOGPROBS}")
        if self.stream_options is not None and self.stream_options.continuous_usage_stats:
            raise refusal("stream_options.continuous_usage_stats", "the usage comes with the last event")
        if self.top_logprobs and not self.tells_logprobs:
            raise misfit("top_logprobs", f"needs 'include' to hold '{LOGPROBS}'")
        return self

    @property
    def effort(self) -> str | None:
        return self.reasoning.effort if self.reasoning else None

    @property
    def tells_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ())

    @property
    def template_messages(self) -> list[dict[str, Any]]:
        items = [Item(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        leading = list(takewhile(lambda item: item.role in ("system", "developer"), items))
        # merged into one message: many templates do not accept a second one
        systems = [self.instructions or "", *(joined(item.content) for item in leading)]
        messages: list[dict[str, Any]] = []
        if self.instructions or leading:
            messages.append({"role": "system", "content": "\n\n".join(filter(None, systems))})
        calling, thought = False, ""
        for item in items[len(leading) :]:
            if item.type == "reasoning":
                thought = joined(item.content)
                continue
            if item.type == "message":
                messages.append({"role": "system" if item.role == "developer" else item.role, "content": joined(item.content)})
            elif item.type == "function_call_output":
                of = {"role": "user"} if item.call_id is None else {"role": "tool", "tool_call_id": item.call_id}
                messages.append({**of, "content": joined(item.output)})
            else:
                # calls are part of the message that the model wrote before them
                if not (messages and messages[-1]["role"] == "assistant" and (calling or "tool_calls" not in messages[-1])):
                    messages.append({"role": "assistant", "content": ""})
                name = own_name(item.namespace, item.name or "")
                function = {"name": name, "arguments": arguments(item.arguments or "")}
                messages[-1].setdefault("tool_calls", []).append({"id": item.call_id, "type": "function", "function": function})
            calling = item.type == "function_call"
            if thought and messages[-1]["role"] == "assistant":
                # a thought belongs to the message that follows it
                messages[-1].setdefault("reasoning_content", thought)
            thought = ""
        return messages

    @property
    def plain_tools(self) -> list[dict[str, Any]]:
        """All tools in the form of chat completions."""
        return [
            {"type": "function", "function": {**tool.model_dump(exclude={"type"} | _OF_NAMESPACE), "name": tool.own_name}}
            for tool in self.tools or ()
        ]

    @property
    def namespaced(self) -> dict[str, tuple[str, str]]:
        """By the names that the model calls, the namespaces of functions that have one, and their names there."""
        return {tool.own_name: (tool.namespace, tool.name) for tool in self.tools or () if tool.namespace}

    @property
    def told_tools(self) -> list[dict[str, Any]]:
        """`tools` as the response repeats them."""
        told = list[dict[str, Any]]()
        for tool in self.tools or ():
            function = {"description": None, **tool.model_dump(exclude=_OF_NAMESPACE)}
            if tool.namespace is None:
                told.append(function)
            elif told and told[-1]["type"] == "namespace" and told[-1]["name"] == tool.namespace:
                told[-1]["tools"].append(function)
            else:
                named = {"type": "namespace", "name": tool.namespace, "description": tool.namespace_description or ""}
                told.append({**named, "tools": [function]})
        return told

    @property
    def allowed_tools(self) -> set[str] | None:
        """Names of the tools that may be called; None for all."""
        if not isinstance(self.tool_choice, ChosenTool) or self.tool_choice.tools is None:
            return None
        return {self._called(str(tool.get("name")), tool.get("namespace")) for tool in self.tool_choice.tools}

    @property
    def plain_choice(self) -> str | dict[str, Any] | None:
        choice = self.tool_choice
        if not isinstance(choice, ChosenTool):
            return choice
        return choice.mode or {"type": "function", "function": {"name": self._called(choice.name or "", choice.namespace)}}

    def _called(self, name: str, namespace: Any) -> str:
        """The name by which the model calls a function. A namespace may be left out if no other function has the name."""
        if isinstance(namespace, str):
            return own_name(namespace, name)
        owners = [tool.own_name for tool in self.tools or () if tool.name == name]
        return owners[0] if len(owners) == 1 else name

    @property
    def told_choice(self) -> str | dict[str, Any]:
        """`tool_choice` as the response repeats it."""
        choice = self.tool_choice
        if not isinstance(choice, ChosenTool):
            return choice or "auto"
        if choice.tools is None:
            return choice.model_dump(include={"type", "name", "namespace"}, exclude_none=True)
        names = [
            {"type": "function", "name": str(tool.get("name")), **{k: v for k, v in tool.items() if k == "namespace"}}
            for tool in choice.tools
        ]
        return {"type": choice.type, "mode": choice.mode, "tools": names}

    @property
    def grammar(self) -> Grammar | None:
        """The grammar of the answer's text. Raises APIError (400) if there are several."""
        asked = self.text and self.text.format
        schema = schema_of(asked.type, asked.schema_) if asked else None
        return only(self, schema, "text.format", "text.format.schema")


def _parts(content: Content | None) -> list[Part]:
    return content if isinstance(content, list) else []


def joined(content: Content | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text or part.refusal or "" for part in content)
