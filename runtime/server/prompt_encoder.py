"""From messages or text to prompt token ids, without stalling the streams of other requests.

Short prompts are rendered and tokenised on the event loop, where that takes less than a thread
switch. Long ones go to one worker thread: tokenising releases the GIL, and one thread bounds what
long prompts can take from the others. What cannot fit the context is refused before any work.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tokenizers import Tokenizer

from glowplug.errors import ContextLengthExceeded, InvalidRequest
from runtime.server.chat_template import ChatTemplate, OutputTooLong
from runtime.server.protocol import Message, TokenIds
from snapshot.manifest import Manifest

_INLINE_CHARS = 8192  # tokenised in about 2 ms
_INLINE_MESSAGES = 64
_MAX_CHARS_PER_TOKEN = 20  # far over any text's average: more than this many cannot fit
_MIN_CHARS_LIMIT = 4096

_Result = TypeVar("_Result")


class PromptEncoder:
    """Renders and tokenises prompts for one model. Used on the event loop."""

    def __init__(
        self,
        *,
        tokenizer: Tokenizer,
        manifest: Manifest,
        max_context: int,
        vocab_size: int,
        context_note: str = "",
    ) -> None:
        self._tokenizer = tokenizer
        self._template = ChatTemplate(manifest.chat)
        self._before, self._after = manifest.special_tokens
        self._vocab_size = vocab_size
        self._max_context = max_context
        self._context_note = context_note
        self._max_chars = max(_MAX_CHARS_PER_TOKEN * max_context, _MIN_CHARS_LIMIT)
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenize")

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        variables: Mapping[str, Any],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> TokenIds:
        """Token ids of a conversation, by the model's chat template.

        The template writes the special tokens itself, so none are added (no second BOS).

        Raises:
            InvalidRequest: the template refuses the messages.
            ContextLengthExceeded: the text is too long to fit, whatever its tokens.
        """
        chars = sum(len(message.content or "") for message in messages)
        chars += len(json.dumps(tools)) if tools else 0

        def encode() -> TokenIds:
            turns = [self._turn(message) for message in messages]
            try:
                text = self._template.render(
                    turns,
                    variables=variables,
                    tools=tools,
                    add_generation_prompt=add_generation_prompt,
                    max_chars=self._max_chars,
                )
            except OutputTooLong:
                raise self._too_long("messages") from None
            return self._encode(text, param="messages", add_special_tokens=False)

        if chars > self._max_chars:
            raise self._too_long("messages")
        inline = chars <= _INLINE_CHARS and len(messages) <= _INLINE_MESSAGES
        return await self._run(encode, inline=inline)

    async def plain(
        self, prompts: Sequence[str | TokenIds], *, add_special_tokens: bool = True
    ) -> list[TokenIds]:
        """Token ids of plain prompts; ids are checked and taken as they are.

        Raises:
            InvalidRequest: an id is not in the vocabulary, or a text has no tokens.
            ContextLengthExceeded: a text is too long to fit, whatever its tokens.
        """
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        if any(len(text) > self._max_chars for text in texts):
            raise self._too_long("prompt")

        def encode() -> list[TokenIds]:
            return [self._plain(prompt, add_special_tokens) for prompt in prompts]

        return await self._run(encode, inline=sum(map(len, texts)) <= _INLINE_CHARS)

    async def texts_to_embed(
        self, inputs: Sequence[str | TokenIds], *, before: TokenIds, after: TokenIds
    ) -> list[TokenIds]:
        """Token ids of texts between the tokens that embeddings have around a text; ids are
        checked and taken as they are.

        Raises: as `plain`.
        """
        texts = [text for text in inputs if isinstance(text, str)]
        if any(len(text) > self._max_chars for text in texts):
            raise self._too_long("input")

        def encode_one(text: str | TokenIds) -> TokenIds:
            if isinstance(text, str):
                plain = self._tokenizer.encode(text, add_special_tokens=False).ids
                text = (*before, *plain, *after)
            self._check(text, param="input")
            return text

        def encode() -> list[TokenIds]:
            return [encode_one(text) for text in inputs]

        return await self._run(encode, inline=sum(map(len, inputs)) <= _INLINE_CHARS)

    def text_of(self, prompt: str | TokenIds) -> str:
        """The prompt as text, for `echo`."""
        if isinstance(prompt, str):
            return prompt
        return self._tokenizer.decode(list(prompt), skip_special_tokens=False)

    def text_of_tokens(self, ids: Sequence[int]) -> str:
        """The text of token ids, special ones too. Raises InvalidRequest for unknown ids."""
        self._check(tuple(ids), param="tokens")
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def close(self) -> None:
        """End the worker thread."""
        self._worker.shutdown(wait=False, cancel_futures=True)

    async def _run(self, work: Callable[[], _Result], *, inline: bool) -> _Result:
        if inline:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)

    def _plain(self, prompt: str | TokenIds, add_special_tokens: bool) -> TokenIds:
        if not isinstance(prompt, str):
            self._check(prompt, param="prompt")
            return prompt
        ids = self._encode(prompt, param="prompt", add_special_tokens=add_special_tokens)
        if not add_special_tokens:
            return ids
        # A tokenizer whose own post-processor puts a BOS has put it already.
        there = ids[: len(self._before)] == self._before
        return (*(() if there else self._before), *ids, *self._after)

    def _encode(self, text: str, *, param: str, add_special_tokens: bool) -> TokenIds:
        ids = tuple(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)
        self._check(ids, param=param)
        return ids

    def _check(self, ids: TokenIds, *, param: str) -> None:
        if not ids:
            raise InvalidRequest(f"{param}: has no tokens; give some text", param=param)
        if min(ids) < 0 or max(ids) >= self._vocab_size:
            raise InvalidRequest(
                f"{param}: a token id is not in the vocabulary (0 to {self._vocab_size - 1})",
                param=param,
            )

    def _too_long(self, param: str) -> ContextLengthExceeded:
        return ContextLengthExceeded(
            f"This model's maximum context length is {self._max_context} tokens. However, your "
            f"{param} came to over {self._max_chars} characters, which cannot fit. Please reduce "
            f"the length of the {param}.{self._context_note}",
            param=param,
            code="context_length_exceeded",
        )

    def _turn(self, message: Message) -> dict[str, Any]:
        """A message as chat templates read it: only the keys that say something."""
        role = message.role
        if role == "developer" and not self._template.knows_developer_role:
            role = "system"
        turn: dict[str, Any] = {"role": role, "content": message.content or ""}
        for key in ("name", "reasoning_content", "tool_call_id"):
            if (value := getattr(message, key)) is not None:
                turn[key] = value
        if message.reasoning_content is not None:
            turn["thinking"] = message.reasoning_content  # as gpt-oss's template calls it
        if message.tool_calls:
            turn["tool_calls"] = [
                {
                    "id": call.id,
                    "type": call.type,
                    "function": {
                        "name": call.function.name,
                        "arguments": _arguments(call.function.arguments),
                    },
                }
                for call in message.tool_calls
            ]
        return turn


def _arguments(text: str) -> Any:
    """Templates take a call's arguments as an object, clients send them as JSON text."""
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return arguments if isinstance(arguments, dict) else text
