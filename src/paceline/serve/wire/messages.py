"""The request of POST /v1/messages, Anthropic's form of a conversation, as a chat template reads it."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field, Tag, model_validator

from paceline.params import Finite, Grammar
from paceline.serve.structured import only
from paceline.serve.wire.chat import FunctionName
from paceline.serve.wire.common import Name, Seed, Text, Wire, misfit, up_to
from paceline.serve.wire.generation import CacheControl, Extensions
from paceline.serve.wire.typed import OfType, by_kind, in_words


class TextBlock(OfType):
    known: ClassVar = ("text",)

    type: Literal["text"]
    text: Text
    cache_control: CacheControl | None = None
    citations: Annotated[list[Any], up_to(0)] | None = None


_BY_KIND = by_kind("must be a text or a list of blocks")
Texts = Annotated[
    Annotated[Text, Tag("str")] | Annotated[list[TextBlock], up_to(1024), Tag("list")],
    _BY_KIND,
]
_BELONG = {
    "text": {"text"},
    "thinking": {"thinking"},
    "redacted_thinking": {"data"},
    "tool_use": {"id", "name", "input"},
    "tool_result": {"tool_use_id"},
}
_OWN = {"content": "tool_result", "is_error": "tool_result", "signature": "thinking", "caller": "tool_use"}
"""Optional fields -> the only type of block that may have them."""


class Caller(OfType):
    """Who called a tool: the model itself, as there is no code here that could."""

    known: ClassVar = ("direct",)

    type: Literal["direct"]


class Block(OfType):
    """A text, what a model thought before it, a call that it made, or what came of that. signature, data: of a thought, the
    latter of one that another server keeps to itself; nobody reads them."""

    known: ClassVar = tuple(_BELONG)

    type: Literal["text", "thinking", "redacted_thinking", "tool_use", "tool_result"]
    text: Text | None = None
    thinking: Text | None = None
    signature: Text | None = None
    data: Text | None = None
    citations: Annotated[list[Any], up_to(0)] | None = None
    id: Name | None = None
    name: FunctionName | None = None
    input: dict[str, Any] | None = None
    tool_use_id: Name | None = None
    content: Annotated[Texts | None, in_words(("image", "document"), "text")] = None
    is_error: bool | None = None
    caller: Caller | None = None
    cache_control: CacheControl | None = None

    @model_validator(mode="after")
    def _coherent(self) -> Block:
        needed = _BELONG[self.type]
        for field in ("text", "thinking", "data", "id", "name", "input", "tool_use_id"):
            if (getattr(self, field) is not None) != (field in needed):
                said = "is missing from" if field in needed else "is no part of"
                raise misfit(field, f"{said} a block of type '{self.type}'")
        for field, owner in _OWN.items():
            if getattr(self, field) is not None and self.type != owner:
                raise misfit(field, f"is no part of a block of type '{self.type}'")
        return self


_STRANGERS = {
    "user": ("tool_use", "thinking", "redacted_thinking"),
    "assistant": ("tool_result",),
    "system": ("tool_use", "thinking", "redacted_thinking", "tool_result"),
}
"""Role of a message -> the types of blocks that do not belong to it."""


class Turn(Wire):
    """One message. Calls belong to the assistant, their results to the user, in front of what else the user says. role: "system"
    for instructions in the course of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[
        Annotated[Text, Tag("str")] | Annotated[list[Block], up_to(1024), Tag("list")],
        _BY_KIND,
    ]

    @model_validator(mode="after")
    def _coherent(self) -> Turn:
        strangers = _STRANGERS[self.role]
        if stranger := next((block.type for block in self.blocks if block.type in strangers), None):
            raise misfit("content", f"holds a '{stranger}', which does not belong to the role '{self.role}'")
        return self

    @property
    def blocks(self) -> list[Block]:
        return [Block(type="text", text=self.content)] if isinstance(self.content, str) else self.content


class ToolOf(OfType):
    """A function that the model may call. input_schema: the JSON schema of its arguments."""

    known: ClassVar = ("custom",)
    unsupported: ClassVar = {
        "defer_loading": "all tools are shown",
        "allowed_callers": "only the model calls tools",
        "input_examples": "give them in the tool's description",
    }

    type: Literal["custom"] | None = None
    name: FunctionName
    description: Text | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    cache_control: CacheControl | None = None
    eager_input_streaming: bool | None = None


class ToolChoice(OfType):
    known: ClassVar = ("auto", "any", "tool", "none")

    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _coherent(self) -> ToolChoice:
        if (self.name is not None) != (self.type == "tool"):
            raise misfit("name", "belongs to the type 'tool', which needs it")
        return self


class SchemaOf(OfType):
    known: ClassVar = ("json_schema",)

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(Wire):
    unsupported: ClassVar = {"task_budget": "use 'max_tokens'"}

    format: SchemaOf | None = None
    effort: Name | None = None


class Thinking(OfType):
    """budget_tokens: about how many a thought may have; a local model cannot be told. display: whether thoughts are told; they
    are never summed up."""

    known: ClassVar = ("disabled", "enabled", "adaptive")

    type: Literal["disabled", "enabled", "adaptive"]
    display: Literal["summarized", "omitted"] | None = None
    budget_tokens: Annotated[int, Field(ge=0, le=2**31)] | None = None


class All(OfType):
    """Nothing is left out."""

    known: ClassVar = ("all",)

    type: Literal["all"]


class Edit(OfType):
    """What to leave out of a conversation that grows. Nothing ever is, so only what leaves out nothing is accepted."""

    known: ClassVar = ("clear_thinking_20251015",)

    type: Literal["clear_thinking_20251015"]
    keep: Annotated[Annotated[Literal["all"], Tag("str")] | Annotated[All, Tag("dict")], by_kind("must be 'all'")]


class ContextManagement(Wire):
    edits: Annotated[list[Edit], up_to(16)] | None = None


_BILLING = "x-anthropic-billing-header:"
"""How a block of the system's begins that Claude Code writes for Anthropic. It is another one in every request, so nothing behind
it would be found in the cache."""


class Prompting(Wire):
    """What is said, and with which tools: all that /v1/messages/count_tokens reads. diagnostics: of the client; nobody reads
    it."""

    unsupported: ClassVar = {
        "container": "no code is run here",
        "inference_geo": "answers come from this machine",
        "mcp_servers": "nothing is fetched from other servers",
        "output_format": "use 'output_config.format'",
        "speed": "there is one",
        "thread": "nothing is stored here; send all of the conversation",
        "user_profile_id": "nothing is stored here",
    }

    model: Name | None = None
    messages: Annotated[list[Turn], up_to(4096, least=1)]
    system: Texts | None = None
    tools: Annotated[list[ToolOf], up_to(128)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    context_management: ContextManagement | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None
    diagnostics: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _answerable(self) -> Prompting:
        if all(turn.role == "system" for turn in self.messages):
            raise misfit("messages", "hold none of the user's or the assistant's")
        if self.continued is not None and any(block.type == "tool_use" for block in self.messages[-1].blocks):
            raise misfit("messages", "end with a call; its 'tool_result' must follow")
        return self

    @property
    def continued(self) -> str | None:
        """The text of the last message if it is the assistant's: the answer continues it."""
        last = self.messages[-1]
        return "\n".join(block.text or "" for block in last.blocks) if last.role == "assistant" and last.blocks else None

    @property
    def template_messages(self) -> list[dict[str, Any]]:
        """Consecutive turns of one role are merged, as in Anthropic's API and as templates require. What the system says later in
        the conversation is put into the user's turn, since many templates take one system message, at the beginning."""
        messages: list[dict[str, Any]] = []
        # per message; joined at the end, since a body may hold a hundred thousand blocks
        texts: list[list[str]] = []
        if text := _text(self._instructions):
            messages.append({"role": "system"})
            texts.append([text])
        for turn in self.messages:
            role = turn.role
            if role == "system" and messages and messages[-1]["role"] != "system":
                role = "user"
            for block in turn.blocks:
                if block.type == "tool_result":
                    said = ("Error: " if block.is_error else "") + _text(block.content or "")
                    messages.append({"role": "tool", "tool_call_id": block.tool_use_id})
                    texts.append([said])
                    continue
                if not (messages and messages[-1]["role"] == role):
                    messages.append({"role": role})
                    texts.append([])
                if block.type == "thinking":
                    thought = messages[-1].get("reasoning_content")
                    messages[-1]["reasoning_content"] = f"{thought}\n{block.thinking}" if thought else block.thinking
                elif block.type == "text":
                    if texts[-1] or block.text:
                        texts[-1].append(block.text or "")
                elif block.type == "tool_use":
                    call = {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": block.input}}
                    messages[-1].setdefault("tool_calls", []).append(call)
        return [{**message, "content": "\n".join(parts)} for message, parts in zip(messages, texts, strict=True)]

    @property
    def _instructions(self) -> str | list[TextBlock]:
        if not isinstance(self.system, list):
            return self.system or ""
        return [block for block in self.system if not block.text.startswith(_BILLING)]

    @property
    def plain_tools(self) -> list[dict[str, Any]]:
        """The tools in the form of chat completions."""
        return [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.input_schema,
                    "strict": tool.strict,
                },
            }
            for tool in self.tools or ()
        ]

    @property
    def plain_choice(self) -> str | dict[str, Any] | None:
        choice = self.tool_choice
        if choice is None:
            return None
        if choice.type == "tool":
            return {"type": "function", "function": {"name": choice.name}}
        return {"any": "required"}.get(choice.type, choice.type)

    @property
    def parallel(self) -> bool:
        return self.tool_choice is None or not self.tool_choice.disable_parallel_tool_use


class Metadata(Wire):
    user_id: Annotated[str, Field(max_length=4096)] | None = None


class MessagesRequest(Prompting, Extensions):
    """A conversation that the model answers with at most max_tokens tokens."""

    max_tokens: Annotated[int, Field(ge=1, le=2**31)]
    temperature: Annotated[Finite, Field(ge=0, le=1)] | None = None
    top_p: Annotated[Finite, Field(ge=0, le=1)] | None = None
    stop_sequences: Annotated[list[Annotated[str, Field(min_length=1, max_length=1024)]], up_to(64)] | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    seed: Seed = None

    @property
    def grammar(self) -> Grammar | None:
        """The grammar of the answer's text. Raises APIError (400) if there are several."""
        asked = self.output_config and self.output_config.format
        return only(self, asked.schema_ if asked else None, "output_config.format", "output_config.format.schema")


def _text(content: str | list[TextBlock]) -> str:
    return content if isinstance(content, str) else "\n".join(block.text for block in content)


class TokenCount(BaseModel):
    input_tokens: int


class MessageError(BaseModel):
    type: str
    message: str
    details: dict[str, Any] | None = None


class MessageErrorBody(BaseModel):
    """What an error says, as Anthropic writes it."""

    type: Literal["error"]
    error: MessageError
