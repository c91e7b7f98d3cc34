"""From tokens to text, one token at a time: whole characters, and nothing of a stop string."""

from tokenizers import Tokenizer

_REPLACEMENT = "\ufffd"
_CONTEXT_TOKENS = 6  # enough for decoders whose spaces depend on what came before
_MAX_PENDING_TOKENS = 8  # a character has at most four bytes, so at most four tokens


class Detokenizer:
    """Incremental decoding for any tokenizer.

    Each step decodes a short window with and without the new tokens and emits the difference (the
    method of Hugging Face's text-generation-inference). Text that ends in the middle of a UTF-8
    character is held until the character is whole.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: tuple[int, ...]) -> None:
        self._tokenizer = tokenizer
        context = list(prompt[-_CONTEXT_TOKENS:])
        if self._decode(context).endswith(_REPLACEMENT):
            context = []  # the prompt ends inside a character: its bytes are not ours to finish
        self._context = context
        self._pending: list[int] = []
        self._context_text = self._decode(context)

    def push(self, token: int) -> str:
        """The text that the token completes; empty while a character is incomplete."""
        self._pending.append(token)
        text = self._decode(self._context + self._pending)
        whole = text.startswith(self._context_text) and not text.endswith(_REPLACEMENT)
        if not whole and len(self._pending) < _MAX_PENDING_TOKENS:
            return ""
        return self._emit(text)

    def flush(self) -> str:
        """What is still held, at the end of the sequence."""
        return self._emit(self._decode(self._context + self._pending)) if self._pending else ""

    def _emit(self, text: str) -> str:
        # Some decoders change earlier text; what was emitted stays, so only what is longer follows.
        new = text[len(self._context_text) :]
        if new:  # tokens without text (special ones) do not become context
            self._context = self._pending
            self._context_text = self._decode(self._context)
        self._pending = []
        return new

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=True)


class StopMatcher:
    """Finds stop strings across tokens and holds back text that may become one."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Text that is safe to show, and whether a stop string was found (it is not shown)."""
        self._held += text
        found = [index for stop in self._stops if (index := self._held.find(stop)) >= 0]
        if found:
            return self._held[: min(found)], True
        keep = max((self._overlap(stop) for stop in self._stops), default=0)
        cut = len(self._held) - keep
        safe, self._held = self._held[:cut], self._held[cut:]
        return safe, False

    def flush(self) -> str:
        """The held text, at the end of a sequence that met no stop string."""
        held, self._held = self._held, ""
        return held

    def _overlap(self, stop: str) -> int:
        """Length of the longest beginning of `stop` at the end of the held text."""
        for length in range(min(len(stop) - 1, len(self._held)), 0, -1):
            if self._held.endswith(stop[:length]):
                return length
        return 0


class OutputText:
    """A sequence's text so far: detokenizer, then stop strings."""

    def __init__(
        self, tokenizer: Tokenizer, *, prompt: tuple[int, ...], stops: tuple[str, ...]
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer, prompt)
        self._stops = StopMatcher(stops)

    def push(self, token: int) -> tuple[str, bool]:
        """New text to show, and whether a stop string ends the sequence."""
        text = self._detokenizer.push(token)
        return self._stops.push(text) if text else ("", False)

    def flush(self) -> tuple[str, bool]:
        """What is left when the sequence ends for another reason; it may still meet a stop."""
        text, stopped = self._stops.push(self._detokenizer.flush())
        return (text, True) if stopped else (text + self._stops.flush(), False)
