"""The request bodies of the API, as OpenAI defines them: what is supported, ignored and refused.

Every field that a client may send is in one of three groups: it does what OpenAI (or vLLM, for the
extensions) says; it asks for nothing of the model (`Ignored`); or it is `Unsupported` and only
passes with a value that asks for nothing. Unknown fields are refused: no parameter is dropped in
silence. `null` is the same as leaving a field out, as it is for OpenAI.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, model_validator

from runtime.server import constraint
from runtime.server.constraint import Constraint
from runtime.server.request_fields import (
    Unsupported,
    contradiction,
    one_or_many_prompts,
    one_or_many_stops,
    plain_variables,
    text_of_parts,
)

MAX_CHOICES = 16
MAX_MESSAGES = 4096
MAX_LOGPROBS = 20
MAX_TOOLS = 128
MAX_DETOKENIZED = 2**20

Ignored = Any
"""Accounting and routing hints: they change nothing about the answer."""

TokenIds = tuple[int, ...]
TokenCount = Annotated[int, Field(ge=1, le=2**31)]


class Strict(BaseModel):
    """No unknown fields, no conversions ("1" is not 1), no NaN or infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class StreamOptions(Strict):
    """What the stream carries beside the text."""

    include_usage: bool | None = None
    include_obfuscation: Annotated[Any, Unsupported(False)] = None


class JsonSchemaFormat(Strict):
    """A named JSON schema. `strict` or not: the output is always valid by it."""

    name: str = Field(max_length=256)
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, PlainValidator(constraint.json_schema)] = Field(
        None, alias="schema"
    )
    strict: bool | None = None


class ResponseFormat(Strict):
    """What the text of an answer must be."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    @property
    def constraint(self) -> Constraint | None:
        """The grammar it asks for."""
        if self.type == "text":
            return None
        schema = self.json_schema.schema_ if self.json_schema else None
        return constraint.of_schema(
            constraint.ANY_OBJECT if schema is None else schema, param="response_format"
        )

    @model_validator(mode="after")
    def _schema_goes_with_its_type(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise contradiction("json_schema", "goes with the type json_schema, and only with it")
        return self


class GenerationFields(Strict):
    """What both endpoints take."""

    model: str = Field(max_length=1024)
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    max_tokens: TokenCount | None = None
    stop: Annotated[tuple[str, ...], PlainValidator(one_or_many_stops)] = ()
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        None, max_length=1024
    )
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)

    # vLLM's extensions
    top_k: int | None = Field(None, ge=-1, le=2**31, description="0 and -1: off")
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    stop_token_ids: list[int] | None = Field(None, max_length=128)
    ignore_eos: bool | None = None
    min_tokens: int | None = Field(None, ge=0, le=2**31)

    # Structured output: OpenAI's field and vLLM's
    response_format: ResponseFormat | None = None
    guided_json: Annotated[dict[str, Any] | None, PlainValidator(constraint.json_schema)] = None
    guided_regex: Annotated[str | None, PlainValidator(constraint.grammar_text)] = None
    guided_choice: Annotated[list[str] | None, PlainValidator(constraint.choice_texts)] = None
    guided_grammar: Annotated[str | None, PlainValidator(constraint.grammar_text)] = None

    user: Ignored = None
    metadata: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_options: Ignored = None
    prompt_cache_retention: Ignored = None

    @property
    def choices(self) -> int:
        """Answers to each prompt."""
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def constraints(self) -> list[Constraint]:
        """The grammars that the fields ask for; a valid request has one at most."""
        asked: list[Constraint] = []
        if self.response_format and (wanted := self.response_format.constraint):
            asked.append(wanted)
        if self.guided_json is not None:
            asked.append(constraint.of_schema(self.guided_json, param="guided_json"))
        if self.guided_regex is not None:
            asked.append(constraint.of_regex(self.guided_regex, param="guided_regex"))
        if self.guided_choice is not None:
            asked.append(constraint.of_choices(self.guided_choice, param="guided_choice"))
        if self.guided_grammar is not None:
            asked.append(constraint.of_lark(self.guided_grammar, param="guided_grammar"))
        return asked

    @model_validator(mode="after")
    def _one_constraint(self) -> Self:
        asked = self.constraints
        if len(asked) > 1:
            raise contradiction(asked[1].param, f"not allowed together with {asked[0].param}")
        if asked and self.ignore_eos:
            raise contradiction("ignore_eos", f"not allowed together with {asked[0].param}")
        if asked and self.min_tokens:
            raise contradiction("min_tokens", f"not allowed together with {asked[0].param}")
        return self

    @model_validator(mode="after")
    def _stream_options_need_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise contradiction("stream_options", "only allowed when stream is true")
        return self


class CalledFunction(Strict):
    """What an assistant called in an earlier turn."""

    name: str
    arguments: str


class ToolCall(Strict):
    """A call in an earlier assistant turn; it goes to the chat template as it is."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction
    index: Ignored = None


class FunctionDefinition(Strict):
    """A function that the model may call. `strict` or not: enforced calls are always valid."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: Annotated[dict[str, Any] | None, PlainValidator(constraint.object_schema)] = None
    strict: bool | None = None


class Tool(Strict):
    """What the model may use: functions only."""

    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(Strict):
    """A function by name."""

    name: str


class NamedTool(Strict):
    """The function that the model must call."""

    type: Literal["function"] = "function"
    function: FunctionName


class Message(Strict):
    """One turn. `content` is text: lists of text parts are joined with newlines."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | None, PlainValidator(text_of_parts)] = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = Field(None, max_length=128)
    tool_call_id: str | None = None

    # Parts of an answer that clients send back as they got it
    annotations: Ignored = None
    refusal: Annotated[Any, Unsupported("")] = None
    audio: Annotated[Any, Unsupported()] = None
    function_call: Annotated[Any, Unsupported()] = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise contradiction("tool_calls", f"not allowed in a message of role {self.role}")
        if self.content is None and not self.tool_calls:
            raise contradiction("content", "required; give a string or a list of text parts")
        return self


class ChatCompletionRequest(GenerationFields):
    """The body of POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: TokenCount | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)

    # vLLM's extensions
    add_generation_prompt: bool | None = None
    chat_template_kwargs: Annotated[dict[str, Any], PlainValidator(plain_variables)] = {}

    tools: list[Tool] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None  # false: one call at most
    functions: Annotated[Any, Unsupported([])] = None
    function_call: Annotated[Any, Unsupported("none", "auto")] = None
    modalities: Annotated[Any, Unsupported(["text"])] = None
    audio: Annotated[Any, Unsupported()] = None
    prediction: Annotated[Any, Unsupported()] = None
    reasoning_effort: Annotated[Any, Unsupported("none")] = None
    verbosity: Annotated[Any, Unsupported("medium")] = None
    web_search_options: Annotated[Any, Unsupported()] = None
    moderation: Annotated[Any, Unsupported()] = None
    store: Annotated[Any, Unsupported(False)] = None

    @property
    def alternatives(self) -> int | None:
        """Log probabilities to report beside the chosen token's; None: not even that."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def prompt_alternatives(self) -> int | None:
        """Nobody asks for those of a chat's prompt."""
        return None

    @property
    def usable_tools(self) -> list[Tool]:
        """The tools that the model is told of: none with a `tool_choice` of none."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def enforced_tools(self) -> list[Tool]:
        """The tools of which the model must call one; empty: it may answer with text."""
        if isinstance(self.tool_choice, NamedTool):
            name = self.tool_choice.function.name
            return [tool for tool in self.usable_tools if tool.function.name == name]
        return self.usable_tools if self.tool_choice == "required" else []

    @property
    def output_tokens(self) -> int | None:
        """The asked-for limit, under either of its names."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        self._check_tools()
        if self.top_logprobs and not self.logprobs:
            raise contradiction("top_logprobs", "only allowed when logprobs is true")
        if None not in (self.max_tokens, self.max_completion_tokens) and (
            self.max_tokens != self.max_completion_tokens
        ):
            raise contradiction("max_tokens", "differs from max_completion_tokens; send only one")
        return self

    def _check_tools(self) -> None:
        tools = self.usable_tools
        names = [tool.function.name for tool in tools]
        if len(set(names)) < len(names):
            raise contradiction("tools", "each function needs a name of its own")
        must_call = self.tool_choice == "required" or isinstance(self.tool_choice, NamedTool)
        if must_call and not self.enforced_tools:
            raise contradiction("tool_choice", "names no function of tools")
        if tools and (asked := self.constraints):
            raise contradiction(asked[0].param, "not allowed together with tools")
        for field in ("ignore_eos", "min_tokens"):
            if must_call and getattr(self, field):
                raise contradiction(field, "not allowed where tool_choice enforces a call")


class CompletionRequest(GenerationFields):
    """The body of POST /v1/completions."""

    prompt: Annotated[tuple[str | TokenIds, ...], PlainValidator(one_or_many_prompts)]
    max_tokens: int | None = Field(None, ge=0, le=2**31, description="0 goes with echo")
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)

    best_of: int | None = None
    suffix: Annotated[Any, Unsupported("")] = None

    @property
    def alternatives(self) -> int | None:
        """Log probabilities to report beside the chosen token's; None: not even that."""
        return self.logprobs

    @property
    def prompt_alternatives(self) -> int | None:
        """The same for the prompt's own tokens."""
        return self.logprobs if self.echo else None

    @property
    def output_tokens(self) -> int | None:
        """The asked-for limit."""
        return self.max_tokens

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        if self.best_of is not None and self.best_of != self.choices:
            raise contradiction("best_of", "not supported by this server; use n")
        if self.max_tokens == 0 and not self.echo:
            raise contradiction("max_tokens", "0 is only allowed when echo is true")
        return self


class TokenizeRequest(Strict):
    """The body of POST /tokenize: a prompt, or messages that the chat template makes one of."""

    model: str | None = Field(None, max_length=1024)
    prompt: str | None = Field(None, min_length=1)
    messages: list[Message] | None = Field(None, min_length=1, max_length=MAX_MESSAGES)
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: Annotated[dict[str, Any], PlainValidator(plain_variables)] = {}

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise contradiction("prompt", "send either prompt or messages")
        if self.messages is not None and self.add_special_tokens:
            raise contradiction("add_special_tokens", "not for messages: their template does it")
        if self.prompt is not None and self.add_generation_prompt:
            raise contradiction("add_generation_prompt", "only for messages")
        if self.prompt is not None and self.chat_template_kwargs:
            raise contradiction("chat_template_kwargs", "only for messages")
        return self


class DetokenizeRequest(Strict):
    """The body of POST /detokenize."""

    model: str | None = Field(None, max_length=1024)
    tokens: list[int] = Field(min_length=1, max_length=MAX_DETOKENIZED)
