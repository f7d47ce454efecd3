"""The request of POST /v1/chat/completions, and its messages as a chat template reads them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, Tag, model_validator

from paceline.serve.wire.common import Entries, Name, Text, Wire, arguments, misfit, refusal, up_to
from paceline.serve.wire.generation import FOREIGN, Generation, TextPart
from paceline.serve.wire.typed import OfType, by_kind

FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]


Extras = dict[str, Any] | None
"""What LiteLLM puts on a message that it was given, of fields that it does not know, and sends back with it; nothing is read."""


class CalledFunction(Wire):
    """parsed_arguments: what OpenAI's clients read `arguments` as, and send back."""

    name: FunctionName
    arguments: Text
    parsed_arguments: Any = None
    provider_specific_fields: Extras = None


class ToolCall(Wire):
    """A call that the model made earlier. index: what streams number their calls with, and means nothing here."""

    id: Name
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None
    provider_specific_fields: Extras = None


_COPIED = frozenset({"role", "refusal", "annotations", "reasoning", "reasoning_content", "tool_calls"})
"""Fields of a whole message that OpenAI's Agents SDK copies to the text of an answer as it sends it back."""


class MessagePart(TextPart):
    """A text, or the refusal that an assistant once gave instead of one."""

    @model_validator(mode="before")
    @classmethod
    def _as_text(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        if values.get("type") == "refusal":
            return {"text" if name == "refusal" else name: value for name, value in values.items()} | {"type": "text"}
        return {name: value for name, value in values.items() if name not in _COPIED}


class Message(Wire):
    """One message. Images, audio and files are refused, and whatever URLs are in a text stay text.

    type: a mark that lm-eval and clients of other APIs put on messages; it says nothing more. reasoning_content, or reasoning:
    what an assistant thought before it answered; templates of models that think read it. parsed: what OpenAI's clients read an
    answer as, and send back.
    """

    # an example, since the schema cannot express that a user's message needs content
    model_config = ConfigDict(json_schema_extra={"examples": [{"role": "user", "content": "Hello"}]})
    unsupported: ClassVar = {
        "audio": "messages are text",
        "function_call": "use 'tool_calls'",
    }

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | Annotated[list[MessagePart], up_to(1024)] | None = None
    type: Literal["text", "message"] | None = None
    name: Name | None = None
    refusal: Text | None = None
    parsed: Any = None
    annotations: Annotated[list[Any], up_to(0)] | None = None
    tool_calls: Annotated[list[ToolCall], up_to(1024)] | None = None
    tool_call_id: Name | None = None
    reasoning: Text | None = None
    reasoning_content: Text | None = None
    provider_specific_fields: Extras = None

    @model_validator(mode="after")
    def _coherent(self) -> Message:
        if self.content is None and self.role != "assistant":
            raise misfit("content", "may only be absent where an assistant calls tools")
        if self.tool_calls and self.role != "assistant":
            raise misfit("tool_calls", f"do not belong to the role '{self.role}'")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise misfit("tool_call_id", "belongs to messages of the role 'tool', which need it")
        return self

    @property
    def text(self) -> str:
        if self.content is None:
            return self.refusal or ""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)

    @property
    def thought(self) -> str:
        return self.reasoning_content or self.reasoning or ""

    @property
    def for_template(self) -> dict[str, Any]:
        """The message as the model's template reads it. Templates do not have the role "developer"."""
        message: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": self.text}
        if self.thought:
            message["reasoning_content"] = self.thought
        for name in ("name", "tool_call_id"):
            if (value := getattr(self, name)) is not None:
                message[name] = value
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.function.name,
                        "arguments": arguments(call.function.arguments),
                    },
                }
                for call in self.tool_calls
            ]
        return message


class Function(Wire):
    """A function that the model may call. parameters: the JSON schema of its arguments."""

    name: FunctionName
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Wire):
    type: Literal["function"]
    function: Function


class NamedFunction(Wire):
    name: FunctionName


class AllowedTool(Wire):
    type: Literal["function"]
    function: NamedFunction


class AllowedTools(Wire):
    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedTool], up_to(128, least=1)]


class ChosenTools(OfType):
    """One function that must be called, or some that may."""

    known: ClassVar = ("function", "allowed_tools")

    type: Literal["function", "allowed_tools"]
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None

    @model_validator(mode="after")
    def _coherent(self) -> ChosenTools:
        for name in self.known:
            if (getattr(self, name) is not None) != (self.type == name):
                raise misfit(name, f"belongs to the type '{name}', which needs it")
        return self


Messages = Annotated[list[Message], up_to(4096, least=1)]
Tools = Annotated[list[Tool], up_to(128)]


Variable = bool | Annotated[int, Field(ge=-(2**53), le=2**53)] | float | Annotated[str, Field(max_length=4096)] | None
Variables = Annotated[dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")], Variable], Entries(32)]


class Conversation(Wire):
    """Messages, and how the template ends them. continue_final_message: the last one, an assistant's, is continued.
    chat_template_kwargs: variables that the model's template reads, such as `enable_thinking`."""

    messages: Messages
    tools: Tools | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: Variables | None = None

    @model_validator(mode="after")
    def _ends(self) -> Conversation:
        if self.continue_final_message:
            if self.messages[-1].role != "assistant":
                raise misfit("continue_final_message", "needs a last message that is an assistant's")
            if self.add_generation_prompt:
                raise misfit("add_generation_prompt", "excludes 'continue_final_message'")
        elif self.add_generation_prompt is False:
            raise misfit("add_generation_prompt", "may only be false with 'continue_final_message'")
        return self

    @property
    def template_messages(self) -> list[dict[str, Any]]:
        return [message.for_template for message in self.messages]

    @property
    def template_tools(self) -> list[dict[str, Any]]:
        return [tool.model_dump(exclude_none=True) for tool in self.tools or ()]


class ChatRequest(Conversation, Generation):
    """A conversation that the model answers. Without max_completion_tokens (or max_tokens), as long as the context lasts."""

    unsupported: ClassVar = FOREIGN | {
        "best_of": "choices are not ranked; ask for n of them",
        "add_special_tokens": "the model's template writes them",
        "audio": "answers are text",
        "echo": "it belongs to text completions",
        "functions": "use 'tools'",
        "function_call": "use 'tool_choice'",
        "include_reasoning": "what a model thinks is always told, as reasoning_content",
        "moderation": "answers are not moderated",
        "suffix": "it belongs to text completions",
        "web_search_options": "nothing is fetched from the web",
    }

    max_completion_tokens: Annotated[int, Field(ge=1, le=2**31)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=2**31)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tool_choice: (
        Annotated[
            Annotated[Literal["none", "auto", "required"], Tag("str")] | Annotated[ChosenTools, Tag("dict")],
            by_kind("must be a word or an object"),
        ]
        | None
    ) = None
    parallel_tool_calls: bool | None = None
    modalities: Annotated[list[Name], up_to(8)] | None = None
    reasoning_effort: Name | None = None
    verbosity: Name | None = None
    prompt_cache_options: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _text_only(self) -> ChatRequest:
        if self.modalities is not None and self.modalities != ["text"]:
            raise refusal("modalities", "answers are text")
        if self.verbosity not in (None, "medium"):
            raise refusal("verbosity", "the model has one way to answer")
        if self.top_logprobs and not self.logprobs:
            raise misfit("top_logprobs", "needs 'logprobs' to be true")
        return self

    @property
    def plain_choice(self) -> str | dict[str, Any] | None:
        """How tools are chosen among those of `allowed_tools`."""
        if not isinstance(self.tool_choice, ChosenTools):
            return self.tool_choice
        allowed = self.tool_choice.allowed_tools
        return self.tool_choice.model_dump(include={"type", "function"}) if allowed is None else allowed.mode

    @property
    def allowed_tools(self) -> set[str] | None:
        """Names of the tools that may be called; None for all."""
        if not isinstance(self.tool_choice, ChosenTools) or self.tool_choice.allowed_tools is None:
            return None
        return {tool.function.name for tool in self.tool_choice.allowed_tools.tools}

    @property
    def most_tokens(self) -> int | None:
        """The smaller of max_tokens and max_completion_tokens, as far as they are set."""
        return min((one for one in (self.max_tokens, self.max_completion_tokens) if one is not None), default=None)
