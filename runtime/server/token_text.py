"""The text of single tokens, for log probabilities: a token's bytes, which need not be whole UTF-8.

The engine's detokenizer makes text of sequences; this only says what one token stands for.
"""

import json
import re
from typing import Any

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class TokenText:
    """Bytes of any token of one tokenizer; remembers what it was asked. Not thread-safe."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._kinds: set[str] | None = None  # of the decoder's parts, read when first needed
        self._known: dict[int, bytes] = {}

    def bytes_of(self, token: int) -> bytes:
        """What the token adds to a text."""
        known = self._known.get(token)
        if known is None:
            known = self._known[token] = self._decode(token)
        return known

    def text_of(self, token: int) -> str:
        """`bytes_of` as text; incomplete characters become U+FFFD."""
        return self.bytes_of(token).decode(errors="replace")

    def _decode(self, token: int) -> bytes:
        piece = self._tokenizer.id_to_token(token)
        if piece is None:  # the model's vocabulary may be padded beyond the tokenizer's
            return b""
        if self._kinds is None:
            self._kinds = _decoder_kinds(self._tokenizer)
        if "ByteLevel" in self._kinds:
            try:
                return bytes(_BYTES_OF_CHARS[char] for char in piece)
            except KeyError:  # an added token, kept as text
                return piece.encode()
        if "ByteFallback" in self._kinds and (match := _BYTE_TOKEN.fullmatch(piece)):
            return bytes.fromhex(match[1])
        if self._kinds & {"Metaspace", "Replace"}:  # SentencePiece
            return piece.replace("▁", " ").encode()
        return self._tokenizer.decode([token], skip_special_tokens=False).encode()


def _decoder_kinds(tokenizer: Tokenizer) -> set[str]:
    """The types in the tokenizer's decoder: {"ByteLevel"}, {"Sequence", "ByteFallback", ...}."""
    if tokenizer.decoder is None:
        return set()

    def kinds(decoder: dict[str, Any]) -> set[str]:
        return {decoder["type"]}.union(*map(kinds, decoder.get("decoders", ())))

    return kinds(json.loads(tokenizer.decoder.__getstate__()))


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins: bytes that print are themselves, the others follow from 256."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES_OF_CHARS = _byte_level_alphabet()
