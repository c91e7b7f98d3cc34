"""From a request body to a Job: parse, validate, tokenise, and choose the answer's shape.

All of a request's 400s and 404s come from here; what reaches the engine is valid. Runs on the event
loop.
"""

import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from glowplug.errors import InvalidRequest, NotFound
from glowplug.stages import Stopwatch
from runtime.engine.grammar import Grammar
from runtime.engine.request import GenerationRequest
from runtime.server.answer import Job
from runtime.server.chat_answer import ChatAnswer
from runtime.server.completion_answer import CompletionAnswer
from runtime.server.constraint import Constraint
from runtime.server.echo import Echo
from runtime.server.errors import invalid_request
from runtime.server.grammar_compiler import GrammarCompiler
from runtime.server.prompt_encoder import PromptEncoder
from runtime.server.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationFields,
    NamedTool,
    Strict,
    TokenIds,
)
from runtime.server.reasoning import OPEN, Reasoning
from runtime.server.reasoning_answer import ChoiceReader, reasoning_reader
from runtime.server.reasoning_grammar import after_reasoning
from runtime.server.sampling import output_budget, sampling_params
from runtime.server.token_text import TokenText
from runtime.server.tool_answer import ToolAnswers
from runtime.server.tool_format import Function, ToolFormat, calls_grammar
from snapshot.manifest import GenerationDefaults

_MARK_TOKENS = 16  # at most, of the mark that begins the reasoning and blanks after it
MAX_SEQUENCES = 128  # prompts x choices of one request

_Request = TypeVar("_Request", bound=Strict)


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """The model that this replica serves, as requests see it."""

    names: Sequence[str]  # the name that /v1/models lists first, then its aliases
    revision: str
    encoder: PromptEncoder
    grammars: GrammarCompiler
    tool_format: ToolFormat | None  # None: the chat template knows none
    reasoning: Reasoning | None  # None: the model does not reason
    token_text: TokenText
    defaults: GenerationDefaults
    max_context: int
    context_note: str  # why it is not the model's own, and what to do; may be empty
    vocab_size: int
    created: int  # Unix time
    adapters: Sequence[str] = ()  # requests name one as `model:adapter`

    @property
    def ids(self) -> Sequence[str]:
        """What /v1/models lists: every name, then the first name with each adapter."""
        return (*self.names, *(f"{self.names[0]}:{adapter}" for adapter in self.adapters))

    def check_name(self, name: str) -> None:
        """Raises NotFound for any other model, and InvalidRequest for it with an adapter."""
        if adapter := self.adapter_of(name):
            raise InvalidRequest(
                f"model: adapters ({adapter}) are not used here; ask for {self.names[0]!r}",
                param="model",
            )

    def adapter_of(self, name: str) -> str | None:
        """The adapter that a request's `model` names. Raises NotFound."""
        if name in self.names:
            return None
        base, _, adapter = name.partition(":")
        if base not in self.names or adapter not in self.adapters:
            raise self._unknown(name)
        return adapter

    def _unknown(self, name: str) -> NotFound:
        adapters = f", with the adapters {', '.join(self.adapters)}" if self.adapters else ""
        return NotFound(
            f"the model {name[:200]!r} does not exist; this is {self.names[0]!r}{adapters}",
            param="model",
            code="model_not_found",
        )


Prepare = Callable[[ServedModel, bytes], Awaitable[Job]]
"""What the two functions below are to their endpoint."""


async def prepare_chat(model: ServedModel, body: bytes) -> Job:
    """The job of a POST /v1/chat/completions. Raises InvalidRequest, NotFound."""
    stopwatch = Stopwatch()
    request = parse(ChatCompletionRequest, body)
    adapter = model.adapter_of(request.model)
    answers = _tool_answers(model, request)
    prompt = await model.encoder.chat(
        request.messages,
        variables=_variables(model, request),
        tools=[tool.model_dump(exclude_unset=True) for tool in request.usable_tools] or None,
        add_generation_prompt=request.add_generation_prompt is not False,
    )
    opened = _opens_reasoning(model, prompt)
    grammar = await _grammar(model, request, opened=opened)
    reader: Callable[[], ChoiceReader] | None = answers.choice if answers else None
    if model.reasoning is not None:
        reader = reasoning_reader(opened, reader)
    envelope = _envelope(model, request, prefix="chatcmpl-")
    requests = _sequences(model, request, [prompt], request_id=envelope["id"], grammar=grammar)
    stopwatch.lap("tokenize")
    return Job(
        requests=requests,
        prompt_tokens=len(prompt),
        shape=ChatAnswer(
            envelope,
            token_text=model.token_text,
            with_logprobs=request.alternatives is not None,
            reader=reader,
            include_usage=request.include_usage,
        ),
        stream=bool(request.stream),
        stages_ms=stopwatch.stages,
        adapter=adapter,
    )


async def prepare_completion(model: ServedModel, body: bytes) -> Job:
    """The job of a POST /v1/completions. Raises InvalidRequest, NotFound."""
    stopwatch = Stopwatch()
    request = parse(CompletionRequest, body)
    adapter = model.adapter_of(request.model)
    if len(request.prompt) * request.choices > MAX_SEQUENCES:
        raise InvalidRequest(
            f"prompt: {len(request.prompt)} prompts with n={request.choices} are over "
            f"{MAX_SEQUENCES} completions, the limit; send fewer prompts at a time",
            param="prompt",
        )
    prompts = await model.encoder.plain(request.prompt)
    grammar = await _grammar(model, request)
    envelope = _envelope(model, request, prefix="cmpl-")
    requests = _sequences(model, request, prompts, request_id=envelope["id"], grammar=grammar)
    stopwatch.lap("tokenize")
    echo = None
    if request.echo:
        echo = [
            Echo(model.encoder.text_of(prompt), tokens)
            for prompt, tokens in zip(request.prompt, prompts, strict=True)
            for _ in range(request.choices)
        ]
    return Job(
        requests=requests,
        prompt_tokens=sum(map(len, prompts)),
        shape=CompletionAnswer(
            envelope,
            token_text=model.token_text,
            echo=echo,
            alternatives=request.alternatives,
            include_usage=request.include_usage,
        ),
        stream=bool(request.stream),
        stages_ms=stopwatch.stages,
        adapter=adapter,
    )


def parse(kind: type[_Request], body: bytes) -> _Request:
    """The body as this kind of request. Raises InvalidRequest."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise invalid_request(error) from None


def _tool_answers(model: ServedModel, request: ChatCompletionRequest) -> ToolAnswers | None:
    if not request.usable_tools:
        return None
    if model.tool_format is None:
        raise InvalidRequest(
            "tools: this model's chat template has no tools, or in an unknown format; leave them "
            'out, or send a tool_choice of "none"',
            param="tools",
        )
    return ToolAnswers(
        form=model.tool_format,
        functions=[tool.function.name for tool in request.usable_tools],
        several=request.parallel_tool_calls is not False,
    )


def _tool_constraints(model: ServedModel, request: GenerationFields) -> list[Constraint]:
    """The grammar that enforces a call; none where the model may answer with text."""
    if not isinstance(request, ChatCompletionRequest) or model.tool_format is None:
        return []
    if not request.enforced_tools:
        return []
    named = isinstance(request.tool_choice, NamedTool)
    grammar = calls_grammar(
        model.tool_format,
        [Function(each.function.name, each.function.parameters) for each in request.enforced_tools],
        several=not named and request.parallel_tool_calls is not False,
        param="tools",
    )
    return [grammar]


async def _grammar(
    model: ServedModel, request: GenerationFields, *, opened: bool | None = None
) -> Grammar | None:
    """The grammar that the request asks for. In a chat (`opened` says whether the prompt opens the
    reasoning) a model that reasons does so first."""
    constraints = request.constraints or _tool_constraints(model, request)
    if not constraints:
        return None
    grammar = await model.grammars.compile(constraints[0])
    if model.reasoning is None or opened is None:
        return grammar
    after = after_reasoning(grammar, model.reasoning, opened=opened, vocab_size=model.vocab_size)
    if after is None:
        param = constraints[0].param
        raise InvalidRequest(
            f"{param}: this model reasons first, and where that ends cannot be told from its "
            "tokens; leave it out",
            param=param,
        )
    return after


def _variables(model: ServedModel, request: ChatCompletionRequest) -> Mapping[str, Any]:
    """The template's variables; a reasoning_effort of "none" is Qwen's `enable_thinking` false."""
    variables = request.chat_template_kwargs
    if request.reasoning_effort is None or model.reasoning is None:
        return variables
    if not model.reasoning.switchable:
        raise InvalidRequest(
            "reasoning_effort: this model always reasons; leave it out", param="reasoning_effort"
        )
    return {"enable_thinking": False, **variables}


def _opens_reasoning(model: ServedModel, prompt: TokenIds) -> bool:
    """Whether the prompt's last words are the mark that begins the reasoning."""
    if model.reasoning is None:
        return False
    return model.encoder.text_of_tokens(prompt[-_MARK_TOKENS:]).rstrip().endswith(OPEN)


def _envelope(model: ServedModel, request: GenerationFields, *, prefix: str) -> dict[str, Any]:
    return {
        "id": prefix + secrets.token_hex(12),
        "created": int(time.time()),
        "model": request.model,
        "system_fingerprint": model.revision,
    }


def _sequences(
    model: ServedModel,
    request: ChatCompletionRequest | CompletionRequest,
    prompts: Sequence[TokenIds],
    *,
    request_id: str,
    grammar: Grammar | None,
) -> list[GenerationRequest]:
    """`n` sequences of each prompt, in the order of OpenAI's `index`."""
    sequences: list[GenerationRequest] = []
    for prompt in prompts:
        params = sampling_params(
            request,
            max_tokens=output_budget(
                request,
                prompt_tokens=len(prompt),
                max_context=model.max_context,
                context_note=model.context_note,
            ),
            defaults=model.defaults,
            vocab_size=model.vocab_size,
        )
        for choice in range(request.choices):
            sequences.append(
                GenerationRequest(
                    id=f"{request_id}-{len(sequences)}",
                    prompt=prompt,
                    params=params,
                    choice=choice,
                    grammar=grammar,
                )
            )
    return sequences
