"""The echoed prompt of a completion: its text, and where in it each of its tokens begins."""

from collections.abc import Sequence
from dataclasses import dataclass

from runtime.server.token_text import TokenText


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt as the client sent it, or its token ids as text; and its tokens."""

    text: str
    tokens: Sequence[int]

    def offsets(self, token_text: TokenText) -> list[int]:
        """For each token the number of characters before it.

        Tokens that are not in the text, such as a BOS that the server put in front, have no width.
        """
        text = self.text.encode()
        offsets: list[int] = []
        at_byte = at_char = 0
        for token in self.tokens:
            offsets.append(at_char)
            piece = token_text.bytes_of(token)
            if at_byte == 0 and not text.startswith(piece):
                piece = piece.removeprefix(b" ")  # SentencePiece puts one before the text
            if piece and text.startswith(piece, at_byte):
                at_byte += len(piece)
                at_char += sum(byte & 0xC0 != 0x80 for byte in piece)  # a character's first byte
        return offsets
