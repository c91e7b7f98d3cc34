"""The engine: one thread, one loop, readable top to bottom.

    take in new requests and aborts → schedule → build the batch → run the model → sample → commit

`Engine.submit` and `Engine.abort` may be called from any thread; everything else happens on the
engine's own. `emit` is called there once per step, with what the step adds to each request.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer

from glowplug.errors import UnsupportedModel
from runtime.engine.batch import build_batch
from runtime.engine.blocks import BlockPool
from runtime.engine.kv_cache import KVCache, bytes_per_block
from runtime.engine.output import OutputText
from runtime.engine.request import Delta, FinishReason, GenerationRequest
from runtime.engine.sampling import Sampled, sample
from runtime.engine.scheduler import Plan, Scheduler
from runtime.engine.sequence import Sequence
from runtime.models.registry import Model

log = logging.getLogger(__name__)

Emit = Callable[[list[tuple[str, Delta]]], None]


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """What one engine may use."""

    max_seqs: int = 16  # sequences in one batch
    max_batch_tokens: int = 512  # tokens in one step; long prompts are split into chunks
    kv_cache_bytes: int = 512 * 2**20
    block_size: int = 16  # tokens in a KV block
    max_context: int | None = None  # tokens of prompt and output; None: the model's own limit


@dataclass(frozen=True, kw_only=True)
class EngineStats:
    """A snapshot of the engine's counters and gauges."""

    running: int
    waiting: int
    blocks: int
    free_blocks: int
    preemptions: int
    steps: int


class Engine:
    """Serves one model. Build it, `start()` it, `submit()` requests, `stop()` it."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        *,
        eos_token_ids: tuple[int, ...],
        limits: EngineLimits,
        emit: Emit,
        on_crash: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_crash` is called on the engine's thread if the loop itself ever fails.

        Raises:
            UnsupportedModel: the KV cache cannot hold one block.
        """
        block_bytes = bytes_per_block(model.config, block_size=limits.block_size, dtype=model.dtype)
        blocks = limits.kv_cache_bytes // block_bytes
        if blocks == 0:
            raise UnsupportedModel(
                f"kv_cache_bytes: {limits.kv_cache_bytes} is less than one block of this model "
                f"({block_bytes} bytes); raise it"
            )
        self._model = model
        self._tokenizer = tokenizer
        self._eos = frozenset(eos_token_ids)
        self._emit = emit
        self._on_crash = on_crash
        self._kv = KVCache(
            model.config,
            blocks=blocks,
            block_size=limits.block_size,
            dtype=model.dtype,
            device=model.device,
        )
        self._scheduler = Scheduler(
            BlockPool(blocks),
            block_size=limits.block_size,
            max_seqs=limits.max_seqs,
            max_batch_tokens=limits.max_batch_tokens,
        )
        self.max_context = min(
            limits.max_context or model.config.max_positions,
            model.config.max_positions,
            blocks * limits.block_size,
        )
        self.vocab_size = model.config.vocab_size
        self._sequences: dict[str, Sequence] = {}
        self._inbox: queue.SimpleQueue[GenerationRequest | str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._steps = 0

    def start(self) -> None:
        """Start the engine's thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the loop after the step in progress; unfinished requests end with ABORT."""
        self._inbox.put(None)
        self._thread.join()

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request that fits `max_context` and whose ids are in the vocabulary."""
        self._inbox.put(request)

    def abort(self, request_id: str) -> None:
        """Forget a request and free its memory before the next step; unknown ids are fine."""
        self._inbox.put(request_id)

    def stats(self) -> EngineStats:
        """Counters and gauges, consistent enough for metrics."""
        scheduler = self._scheduler
        return EngineStats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            blocks=scheduler.pool.count,
            free_blocks=scheduler.pool.free_count,
            preemptions=scheduler.preemptions,
            steps=self._steps,
        )

    # The loop -----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._loop()
            ending = Delta(finish=FinishReason.ABORT)
        except Exception:
            log.exception("the engine's loop failed")
            ending = Delta(
                finish=FinishReason.ERROR, error="the engine stopped on a fault of its own"
            )
            self._on_crash()
        self._emit([(request_id, ending) for request_id in self._sequences])

    @torch.inference_mode()
    def _loop(self) -> None:
        while self._take_in():
            plan = self._scheduler.schedule()
            if not plan.chunks:
                continue
            _note_admissions(plan)
            try:
                batch = build_batch(plan, block_size=self._kv.block_size, device=self._model.device)
                logits = self._model.forward(batch, self._kv)
                sampled = sample(logits, plan.sampled)
            except Exception as error:  # one bad batch must not end the process
                log.exception("step failed")
                self._fail(plan, error)
                continue
            if deltas := self._commit(plan, sampled):
                self._emit(deltas)

    def _take_in(self) -> bool:
        """Drain the inbox, waiting only when there is nothing to run; False: stop."""
        block = not self._scheduler.has_work
        while True:
            try:
                message = self._inbox.get(block)
            except queue.Empty:
                return True
            if message is None:
                return False
            if isinstance(message, str):
                self._forget(message)
            else:
                self._add(message)
            block = not self._scheduler.has_work and self._inbox.empty()

    def _add(self, request: GenerationRequest) -> None:
        text = OutputText(self._tokenizer, prompt=request.prompt, stops=request.params.stop)
        sequence = Sequence(request, text, arrived_s=time.perf_counter())
        self._sequences[request.id] = sequence
        self._scheduler.add(sequence)

    def _forget(self, request_id: str) -> None:
        if sequence := self._sequences.pop(request_id, None):
            self._scheduler.finish(sequence)

    def _fail(self, plan: Plan, error: Exception) -> None:
        message = f"the engine failed on this request ({type(error).__name__}: {error})"
        deltas = []
        for chunk in plan.chunks:
            self._kv.clear(chunk.sequence.blocks)
            self._forget(chunk.sequence.id)
            deltas.append((chunk.sequence.id, Delta(finish=FinishReason.ERROR, error=message)))
        self._emit(deltas)

    def _commit(self, plan: Plan, sampled: list[Sampled]) -> list[tuple[str, Delta]]:
        """The only place that advances sequences and frees what is finished."""
        self._steps += 1
        now_s = time.perf_counter()
        self._scheduler.commit(plan)
        deltas = []
        for sequence, choice in zip(plan.sampled, sampled, strict=True):
            delta = self._advance(sequence, choice, now_s=now_s)
            if delta.finish:
                self._forget(sequence.id)
            deltas.append((sequence.id, delta))
        return deltas

    def _advance(self, sequence: Sequence, choice: Sampled, *, now_s: float) -> Delta:
        """Add one sampled token to its sequence and say what that changes for the client."""
        if choice.error:
            self._kv.clear(sequence.blocks)
            return Delta(finish=FinishReason.ERROR, error=choice.error)
        params, token = sequence.request.params, choice.token
        sequence.append(token)
        finish: FinishReason | None = None
        if token in params.stop_token_ids or (token in self._eos and not params.ignore_eos):
            text, _ = sequence.text.flush()
            finish = FinishReason.STOP
        else:
            text, stopped = sequence.text.push(token)
            full = len(sequence.tokens) >= self.max_context
            if not stopped and (full or sequence.generated >= params.max_tokens):
                rest, stopped = sequence.text.flush()
                text, finish = text + rest, FinishReason.LENGTH
            if stopped:
                finish = FinishReason.STOP
        return Delta(
            text=text,
            tokens=(token,),
            logprobs=(choice.logprob,) if choice.logprob else (),
            finish=finish,
            stages_ms=_first_token_stages(sequence, now_s) if sequence.generated == 1 else None,
        )


def _note_admissions(plan: Plan) -> None:
    for chunk in plan.chunks:
        if chunk.sequence.admitted_s is None:
            chunk.sequence.admitted_s = time.perf_counter()


def _first_token_stages(sequence: Sequence, now_s: float) -> dict[str, float]:
    admitted_s = sequence.admitted_s or sequence.arrived_s
    return {
        "queue": (admitted_s - sequence.arrived_s) * 1e3,
        "prefill": (now_s - admitted_s) * 1e3,
    }
