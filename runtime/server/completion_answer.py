"""The shape of /v1/completions answers."""

import json
from collections.abc import Sequence
from typing import Any

from runtime.engine.request import TokenLogprob
from runtime.server.answer import FinishedChoice, Piece, Usage, json_logprob
from runtime.server.echo import Echo
from runtime.server.events import HOLE, TextEvent, event
from runtime.server.token_text import TokenText


class CompletionAnswer:
    """Writes one text completion. `envelope` has its id, created, model and system_fingerprint.

    `echo` has the prompt to put before each choice; None puts nothing.
    """

    def __init__(
        self,
        envelope: dict[str, Any],
        *,
        token_text: TokenText,
        echo: Sequence[Echo] | None,
        alternatives: int | None,
        include_usage: bool,
    ) -> None:
        self._head = {**envelope, "object": "text_completion"}
        self._token_text = token_text
        self._echo = echo
        self._alternatives = alternatives
        self._include_usage = include_usage
        self._text_event = TextEvent(self._chunk(HOLE, HOLE, logprobs=HOLE))

    def opening(self, index: int) -> bytes:
        """The echoed prompt; where log probabilities come with it, the first piece brings them."""
        if self._echo is None or self._alternatives is not None:
            return b""
        return self._text_event.fill(index, self._echo[index].text)

    def piece(self, index: int, piece: Piece) -> bytes:
        """Some text."""
        if self._alternatives is None:
            return self._text_event.fill(index, piece.text)
        echoed = b""
        if self._echo is not None and piece.prompt is not None:
            logprobs = json.dumps(self._prompt_logprobs(self._echo[index], piece.prompt))
            echoed = self._text_event.fill(index, self._echo[index].text, logprobs)
            if not piece.text and not piece.logprobs:
                return echoed
        logprobs = json.dumps(self._logprobs([piece], after=self._echoed_chars(index)))
        return echoed + self._text_event.fill(index, piece.text, logprobs)

    def ending(self, index: int, finish_reason: str) -> bytes:
        """The finish reason."""
        return event(self._chunk(index, "", finish_reason=finish_reason))

    def usage(self, usage: Usage) -> bytes:
        """The usage chunk, where the request asked for it."""
        if not self._include_usage:
            return b""
        return event({**self._head, "choices": [], "usage": usage.body()})

    def whole(self, choices: Sequence[FinishedChoice], usage: Usage) -> dict[str, Any]:
        """The text_completion object."""
        return {
            **self._head,
            "choices": [
                {
                    "index": index,
                    "text": ("" if self._echo is None else self._echo[index].text) + choice.text,
                    "logprobs": self._all_logprobs(index, choice),
                    "finish_reason": choice.finish_reason,
                }
                for index, choice in enumerate(choices)
            ],
            "usage": usage.body(),
        }

    def _chunk(
        self,
        index: int | str,
        text: str,
        *,
        logprobs: str | None = None,
        finish_reason: str | None = None,
    ) -> dict[str, Any]:
        choice = {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        chunk = {**self._head, "choices": [choice]}
        return {**chunk, "usage": None} if self._include_usage else chunk

    def _echoed_chars(self, index: int) -> int:
        return 0 if self._echo is None else len(self._echo[index].text)

    def _all_logprobs(self, index: int, choice: FinishedChoice) -> dict[str, Any] | None:
        if self._alternatives is None:
            return None
        generated = self._logprobs(choice.pieces, after=self._echoed_chars(index))
        prompt = next((piece.prompt for piece in choice.pieces if piece.prompt is not None), None)
        if self._echo is None or prompt is None:
            return generated
        before = self._prompt_logprobs(self._echo[index], prompt)
        return {key: values and values + generated[key] for key, values in before.items()}

    def _prompt_logprobs(self, echo: Echo, scored: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Nothing comes before the first token, so it has none."""
        return {
            "tokens": [self._token_text.text_of(token) for token in echo.tokens],
            "token_logprobs": [None, *(json_logprob(one.logprob) for one in scored)],
            "top_logprobs": [None, *map(self._top, scored)] if self._alternatives else None,
            "text_offset": echo.offsets(self._token_text),
        }

    def _logprobs(self, pieces: Sequence[Piece], *, after: int = 0) -> dict[str, Any]:
        """Of generated text that begins `after` as many characters."""
        tokens: list[str] = []
        offsets: list[int] = []
        chosen = [logprob for piece in pieces for logprob in piece.logprobs]
        for piece in pieces:
            offset = piece.offset
            for logprob in piece.logprobs:
                text = self._token_text.text_of(logprob.token)
                tokens.append(text)
                # Never past the piece: a part of a character counts as one, a stop as nothing.
                offsets.append(after + min(offset, piece.offset + len(piece.text)))
                offset += len(text)
        return {
            "tokens": tokens,
            "token_logprobs": [json_logprob(logprob.logprob) for logprob in chosen],
            "top_logprobs": [self._top(logprob) for logprob in chosen]
            if self._alternatives
            else None,
            "text_offset": offsets,
        }

    def _top(self, chosen: TokenLogprob) -> dict[str, float]:
        """The likeliest tokens and the chosen one, by text; the likelier of two with one text."""
        top: dict[str, float] = {}
        for token, logprob in (*chosen.top, (chosen.token, chosen.logprob)):
            top.setdefault(self._token_text.text_of(token), json_logprob(logprob))
        return top
