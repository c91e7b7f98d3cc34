"""The body of POST /v1/embeddings, as OpenAI defines it."""

from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator

from runtime.server.protocol import Ignored, Strict, TokenIds
from runtime.server.request_fields import one_or_many_prompts

MAX_INPUTS = 2048  # as OpenAI's
MAX_TOTAL_TOKENS = 300_000  # of all inputs; as OpenAI's


def _inputs(value: Any) -> tuple[str | TokenIds, ...]:
    return one_or_many_prompts(value, most=MAX_INPUTS, noun="inputs")


class EmbeddingRequest(Strict):
    """What to embed, and how to write the vectors."""

    model: str = Field(max_length=1024)
    input: Annotated[tuple[str | TokenIds, ...], PlainValidator(_inputs)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1, le=2**31)
    user: Ignored = None
