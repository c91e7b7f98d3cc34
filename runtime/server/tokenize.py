"""POST /tokenize and /detokenize, in vLLM's shapes: what the model's tokenizer makes of a prompt,
and back. No engine is involved. Runs on the event loop; long texts in the encoder's thread.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from runtime.server.prepare import ServedModel, parse
from runtime.server.protocol import DetokenizeRequest, TokenizeRequest

Answer = Callable[[ServedModel, bytes], Awaitable[dict[str, Any]]]
"""What the two functions below are."""


async def answer_json(
    body: bytes, scope: Scope, receive: Receive, send: Send, *, answer: Answer, model: ServedModel
) -> None:
    """Send what one of them makes of the body. Raises GlowplugErrors."""
    await JSONResponse(await answer(model, body))(scope, receive, send)


async def tokenize(model: ServedModel, body: bytes) -> dict[str, Any]:
    """The tokens of a prompt or a conversation. Raises InvalidRequest, NotFound."""
    request = parse(TokenizeRequest, body)
    model.adapter_of(request.model or model.names[0])
    if request.messages is not None:
        tokens = await model.encoder.chat(
            request.messages,
            variables=request.chat_template_kwargs,
            add_generation_prompt=request.add_generation_prompt is not False,
        )
    else:
        [tokens] = await model.encoder.plain(
            [request.prompt or ""], add_special_tokens=request.add_special_tokens is not False
        )
    return {"count": len(tokens), "max_model_len": model.max_context, "tokens": list(tokens)}


async def detokenize(model: ServedModel, body: bytes) -> dict[str, Any]:
    """The text of some tokens, special ones too. Raises InvalidRequest, NotFound."""
    request = parse(DetokenizeRequest, body)
    model.adapter_of(request.model or model.names[0])
    return {"prompt": model.encoder.text_of_tokens(request.tokens)}
