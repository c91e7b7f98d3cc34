"""The shape of /v1/chat/completions answers."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from runtime.engine.request import TokenLogprob
from runtime.server.answer import FinishedChoice, Piece, Usage, json_logprob
from runtime.server.events import HOLE, TextEvent, event
from runtime.server.reasoning_answer import ChoiceReader
from runtime.server.token_text import TokenText


class ChatAnswer:
    """Writes one chat completion. `envelope` has its id, created, model and system_fingerprint.

    A `reader` takes a choice's text apart, into reasoning and tool calls; without, all of it is
    content.
    """

    def __init__(
        self,
        envelope: dict[str, Any],
        *,
        token_text: TokenText,
        with_logprobs: bool,
        include_usage: bool,
        reader: Callable[[], ChoiceReader] | None = None,
    ) -> None:
        self._envelope = envelope
        self._token_text = token_text
        self._with_logprobs = with_logprobs
        self._include_usage = include_usage
        self._reader = reader
        self._choices: dict[int, ChoiceReader] = {}  # of a stream
        self._text_event = TextEvent(self._chunk(HOLE, {"content": HOLE}, logprobs=HOLE))

    def opening(self, index: int) -> bytes:
        """The role."""
        if self._reader is not None:
            self._choices[index] = self._reader()
        return event(self._chunk(index, {"role": "assistant", "content": ""}))

    def piece(self, index: int, piece: Piece) -> bytes:
        """Some content, reasoning or part of a tool call; nothing while that is not decided."""
        if choice := self._choices.get(index):
            return self._deltas(index, choice.feed(piece.text), [piece])
        if not self._with_logprobs:
            return self._text_event.fill(index, piece.text)
        return self._text_event.fill(index, piece.text, json.dumps(self._logprobs([piece])))

    def ending(self, index: int, finish_reason: str) -> bytes:
        """The finish reason."""
        held = b""
        if choice := self._choices.get(index):
            held = self._deltas(index, choice.finish(), [])
            finish_reason = choice.finish_reason(finish_reason)
        return held + event(self._chunk(index, {}, finish_reason=finish_reason))

    def usage(self, usage: Usage) -> bytes:
        """The usage chunk, where the request asked for it."""
        if not self._include_usage:
            return b""
        return event({**self._head("chat.completion.chunk"), "choices": [], "usage": usage.body()})

    def whole(self, choices: Sequence[FinishedChoice], usage: Usage) -> dict[str, Any]:
        """The chat.completion object."""
        return {
            **self._head("chat.completion"),
            "choices": [
                {
                    "index": index,
                    **self._message(choice),
                    "logprobs": self._logprobs(choice.pieces) if self._with_logprobs else None,
                }
                for index, choice in enumerate(choices)
            ],
            "usage": usage.body(),
        }

    def _message(self, choice: FinishedChoice) -> dict[str, Any]:
        reason = choice.finish_reason
        if self._reader is None:
            message = {"role": "assistant", "content": choice.text, "refusal": None}
        else:
            reader = self._reader()
            message = reader.message(choice.text)
            reason = reader.finish_reason(reason)
        return {"message": message, "finish_reason": reason}

    def _deltas(self, index: int, deltas: list[dict[str, Any]], pieces: Sequence[Piece]) -> bytes:
        """Their events; the pieces' log probabilities come with the first."""
        logprobs = self._logprobs(pieces) if self._with_logprobs and pieces else None
        events = b""
        for delta in deltas or ([{}] if logprobs else []):
            events += event(self._chunk(index, delta, logprobs=logprobs))
            logprobs = None
        return events

    def _head(self, kind: str) -> dict[str, Any]:
        return {**self._envelope, "object": kind}

    def _chunk(
        self,
        index: int | str,
        delta: dict[str, Any],
        *,
        logprobs: str | dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> dict[str, Any]:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        chunk = {**self._head("chat.completion.chunk"), "choices": [choice]}
        return {**chunk, "usage": None} if self._include_usage else chunk

    def _logprobs(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        tokens = [self._token(logprob) for piece in pieces for logprob in piece.logprobs]
        return {"content": tokens, "refusal": None}

    def _token(self, chosen: TokenLogprob) -> dict[str, Any]:
        top = [self._alternative(token, logprob) for token, logprob in chosen.top]
        return {**self._alternative(chosen.token, chosen.logprob), "top_logprobs": top}

    def _alternative(self, token: int, logprob: float) -> dict[str, Any]:
        return {
            "token": self._token_text.text_of(token),
            "logprob": json_logprob(logprob),
            "bytes": list(self._token_text.bytes_of(token)),
        }
