"""A standby's rehearsal: it is a replica for a moment, of a toy model, and answers a chat.

The first request of a new process costs some 20 ms more than the second: pages that it shares with
the fork server are copied when they are first written to, lazily made validators and allocator
arenas are made, the interpreter specialises its code. The rehearsal pays for all of it, on the very
path that the first request will take, before anybody waits. Called once by a standby, on its main
thread; nothing of it is left running.
"""

import asyncio
import json
import math
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import torch
import uvloop
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from glowplug.contracts import Assignment
from glowplug.spec import Dtype
from glowplug.stages import Stopwatch
from runtime.pod.program import Start
from snapshot.hashing import file_entry
from snapshot.manifest import (
    MANIFEST,
    TOKENIZER,
    WEIGHTS,
    ChatFormat,
    GenerationDefaults,
    Manifest,
    digest_of,
)
from snapshot.model_config import ModelConfig
from snapshot.weights_file import plan_weights

_REQUESTS = 3  # the interpreter specialises what it has run a few times
_LIMIT_S = 20.0
_DTYPE: Dtype = "bfloat16"
_CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_TOY = ModelConfig(
    family="llama",
    vocab_size=512,
    hidden_size=64,
    intermediate_size=128,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=32,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    max_positions=512,
    tie_embeddings=True,
)


def rehearse(serve: Callable[[Start], Awaitable[None]], *, snapshot: str) -> None:
    """Serve `snapshot` (made by `write_toy_snapshot`) and answer a few streamed chats with it.

    Raises:
        OSError: there is no loopback to talk over.
        TimeoutError: it took over 20 s.
        RuntimeError: an answer was not as it should be.
        GlowplugError: the toy could not be served.
    """
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(_rehearse(serve, snapshot))
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def _rehearse(serve: Callable[[Start], Awaitable[None]], snapshot: str) -> None:
    loop = asyncio.get_running_loop()
    drain: asyncio.Future[float] = loop.create_future()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assignment = Assignment(
            replica="rehearsal",
            function="rehearsal",
            revision="rehearsal",
            snapshot=snapshot,
            max_context=None,
            max_seqs=2,
            kv_cache_bytes=1 << 20,
        )
        port = listener.getsockname()[1]
        async with asyncio.timeout(_LIMIT_S):
            serving = asyncio.ensure_future(
                serve(
                    Start(
                        assignment=assignment,
                        listener=listener,
                        stopwatch=Stopwatch(),
                        ready=lambda max_context=None: None,
                        sleep=asyncio.Event(),
                        slept=lambda _asleep: None,
                        measured=lambda _text: None,
                        drain=drain,
                    )
                )
            )
            chats = loop.create_task(_chats(port))
            try:
                await asyncio.wait({serving, chats}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                chats.cancel()  # unless they are over
                drain.set_result(0.0)
                await serving  # first: why it could not serve
            await chats


async def _chats(port: int) -> None:
    for _ in range(_REQUESTS):
        await _chat(port)


async def _chat(port: int) -> None:
    body = json.dumps(
        {
            "model": "rehearsal",
            "messages": [{"role": "user", "content": "Is the engine warm?"}],
            "max_tokens": 3,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: rehearsal\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head.encode() + body)
        answer = await reader.read()
        if b"[DONE]" not in answer:
            raise RuntimeError(f"the rehearsal's answer is not complete: {answer[-300:]!r}")
    finally:
        writer.close()


def write_toy_snapshot(cache: Path) -> str:
    """Write a toy's snapshot (some 300 kB) into the folder `cache`; its digest. Raises OSError."""
    plan = plan_weights(_TOY, _DTYPE)
    pieces = [plan.header]
    for slot in plan.slots.values():
        numbers = torch.full((math.prod(slot.shape),), 0.01, dtype=torch.bfloat16)
        pieces += [numbers.view(torch.uint8).numpy().tobytes(), bytes(slot.padding_bytes)]
    files = {WEIGHTS: b"".join(pieces), TOKENIZER: _toy_tokenizer().to_str().encode()}
    manifest = Manifest(
        source="rehearsal",
        dtype=_DTYPE,
        config=_TOY,
        add_bos=False,
        bos_token_id=None,
        generation=GenerationDefaults(eos_token_ids=(_TOY.vocab_size - 1,)),
        chat=ChatFormat(template=_CHATML),
        files={name: file_entry(data) for name, data in files.items()},
    ).to_bytes()
    digest = digest_of(manifest)
    folder = cache / digest
    folder.mkdir()
    for name, data in {**files, MANIFEST: manifest}.items():
        (folder / name).write_bytes(data)
    return digest


def _toy_tokenizer() -> Tokenizer:
    """A byte-level tokenizer without merges; the rest of the vocabulary are words nobody writes."""
    words = sorted(pre_tokenizers.ByteLevel.alphabet())
    words += [f"<unused {n}>" for n in range(_TOY.vocab_size - len(words))]
    tokenizer = Tokenizer(BPE({word: n for n, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
