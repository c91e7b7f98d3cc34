"""The engine: one thread, one loop, readable top to bottom.

    take in requests and aborts → speculate → schedule → build the batch → run the model → sample
    → commit

`Engine.submit` and `Engine.abort` may be called from any thread; everything else happens on the
engine's own. `emit` is called there once per step, with what the step adds to each request.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path

import torch
from tokenizers import Tokenizer

from glowplug.errors import UnsupportedModel
from runtime.engine.advance import advance, first_token_stages
from runtime.engine.batch import build_batch
from runtime.engine.blocks import BlockPool
from runtime.engine.context import context_limit
from runtime.engine.drafting import DraftModel
from runtime.engine.kv_cache import KVCache, bytes_per_block
from runtime.engine.limits import EngineLimits, EngineStats
from runtime.engine.output import OutputText
from runtime.engine.pace import Pace
from runtime.engine.pooling import NOT_FINITE, is_finite, pool
from runtime.engine.prompt_logprobs import score_prompts, scored_tokens_limit
from runtime.engine.request import Delta, Embedding, FinishReason, GenerationRequest
from runtime.engine.sampling import Position, Sampled, sample
from runtime.engine.scheduler import Chunk, Plan, Scheduler
from runtime.engine.sequence import Sequence
from runtime.engine.speculator import LookupProposer, Proposer, Speculator, in_all
from runtime.engine.step_sizes import StepSizes
from runtime.engine.stored_prefixes import StoredPrefixes
from runtime.engine.thread import STEP_FAILED, Emit, run_to_end
from runtime.models.registry import Model

log = logging.getLogger(__name__)


class _Signal(Enum):
    STOP = auto()
    SLEEP = auto()


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
        prefixes: Path | None = None,
        on_crash: Callable[[], None] = lambda: None,
        on_sleep: Callable[[bool], None] = lambda _asleep: None,
        draft: Model | None = None,
    ) -> None:
        """`prefixes` is the file that an earlier engine of the same snapshot may have left.
        `on_crash` is called on the engine's thread if the loop itself ever fails, `on_sleep` when
        it has fallen asleep (True) or woken up. `draft` is a small model of the same vocabulary
        that guesses tokens.

        Raises:
            UnsupportedModel: the KV cache cannot hold one block, or cannot be reserved.
        """
        drafts = draft if limits.speculation else None
        block_bytes = sum(
            bytes_per_block(each.config, block_size=limits.block_size, dtype=each.dtype)
            for each in (model, drafts)
            if each is not None
        )
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
        self._on_sleep = on_sleep
        self._asleep = False
        self._kv = _cache(model, blocks=blocks, block_size=limits.block_size)
        self._prefixes = (
            StoredPrefixes(
                prefixes,
                self._kv,
                kernels=model.kv_variant,
                max_bytes=limits.prefix_snapshot_bytes,
            )
            if prefixes and limits.prefix_snapshot_bytes
            else None
        )
        self._scheduler = Scheduler(
            BlockPool(blocks),
            block_size=limits.block_size,
            max_seqs=limits.max_seqs,
            max_batch_tokens=limits.max_batch_tokens,
            prefixes=self._prefixes,
            max_scored_tokens=scored_tokens_limit(model.config.vocab_size),
        )
        self.max_context, self.context_note = context_limit(
            model=model.config.max_positions,
            asked=limits.max_context,
            held=blocks * limits.block_size,
        )
        self.vocab_size = model.config.vocab_size
        self._sequences: dict[str, Sequence] = {}
        self._inbox: queue.SimpleQueue[GenerationRequest | str | _Signal] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._steps = 0
        self._pace = Pace()
        self._step_sizes = StepSizes()
        proposers: list[Proposer] = [LookupProposer()] if limits.speculation else []
        self._draft: DraftModel | None = None
        if drafts is not None:
            draft_kv = _cache(drafts, blocks=blocks, block_size=limits.block_size)
            self._draft = DraftModel(drafts, draft_kv, reserve=self._scheduler.reserve)
            proposers.append(self._draft)
        self._speculator = Speculator(proposers, max_context=self.max_context)

    def start(self) -> None:
        """Start the engine's thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the loop after the step in progress; unfinished requests end with ABORT."""
        self._inbox.put(_Signal.STOP)
        self._thread.join()

    def sleep(self) -> None:
        """Give the KV memory back, if nothing runs or waits by then; the next request wakes it."""
        self._inbox.put(_Signal.SLEEP)

    def save_prefixes(self, path: Path) -> int:
        """After `stop`: write the hottest prompt prefixes to a new file; how many blocks.

        Raises:
            OSError: it cannot be written.
        """
        if self._prefixes is None or self._asleep:
            return 0
        return self._prefixes.save(self._scheduler.pool.published, path)

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request that fits `max_context` and whose ids are in the vocabulary."""
        self._inbox.put(request)

    def abort(self, request_id: str) -> None:
        """Forget a request and free its memory before the next step; unknown ids are fine."""
        self._inbox.put(request_id)

    def stats(self) -> EngineStats:
        """Counters and gauges, consistent enough for metrics."""
        scheduler, drafts = self._scheduler, self._speculator.tallies()
        total = in_all(drafts.values())
        return EngineStats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            blocks=scheduler.pool.count,
            free_blocks=scheduler.pool.free_count,
            preemptions=scheduler.preemptions,
            steps=self._steps,
            prefix_queries=scheduler.prefix_queries,
            prefix_hits=scheduler.prefix_hits,
            drafts_proposed=total.proposed,
            drafts_accepted=total.accepted,
            drafts_by_method=drafts,
            step_tokens=self._step_sizes.tokens,
            step_sizes=tuple(self._step_sizes.counts),
        )

    # The loop -----------------------------------------------------------------------------------

    def _run(self) -> None:
        run_to_end(self._loop, unfinished=self._sequences, emit=self._emit, on_crash=self._on_crash)

    @torch.inference_mode()
    def _loop(self) -> None:
        while self._take_in():
            self._speculator.propose(self._scheduler.decoding, cost=self._pace.decode)
            began_s = time.perf_counter()
            plan = self._scheduler.schedule(self._pace.limit(self._scheduler))
            if not plan.chunks:
                continue
            _note_admissions(plan)
            try:
                batch = build_batch(plan, block_size=self._kv.block_size, device=self._model.device)
                logits = self._model.forward(batch, self._kv)
                sampled = sample(score_prompts(plan, logits), _positions(plan))
                embeddings = pool(plan, batch.pooled.hidden if batch.pooled else None)
            except Exception:  # one bad batch must not end the process
                log.exception("a step of %d sequences failed", len(plan.chunks))
                self._fail(plan)
                continue
            if deltas := self._commit(plan, sampled, embeddings):
                self._emit(deltas)
            self._pace.learn(plan, ms=(time.perf_counter() - began_s) * 1e3)

    def _take_in(self) -> bool:
        """Drain the inbox, waiting only when there is nothing to run; False: stop."""
        block = not self._scheduler.has_work
        while True:
            try:
                message = self._inbox.get(block)
            except queue.Empty:
                return True
            if message is _Signal.STOP:
                return False
            if message is _Signal.SLEEP:
                self._fall_asleep()
            elif isinstance(message, str):
                self._forget(message)
            else:
                self._add(message)
            block = not self._scheduler.has_work and self._inbox.empty()

    def _fall_asleep(self) -> None:
        if self._asleep or self._scheduler.has_work:
            return
        self._scheduler.pool.forget_free()
        self._kv.give_back()
        if self._draft:
            self._draft.give_back()
        self._asleep = True
        self._on_sleep(True)

    def _wake(self) -> None:
        self._kv.take_again()
        if self._draft:
            self._draft.take_again()
        self._asleep = False
        self._on_sleep(False)

    def _add(self, request: GenerationRequest) -> None:
        if self._asleep:
            self._wake()
        text = OutputText(self._tokenizer, prompt=request.prompt, stops=request.params.stop)
        sequence = Sequence(request, text, arrived_s=time.perf_counter(), eos=self._eos)
        self._sequences[request.id] = sequence
        self._scheduler.add(sequence)

    def _forget(self, request_id: str) -> None:
        if sequence := self._sequences.pop(request_id, None):
            self._scheduler.finish(sequence)

    def _fail(self, plan: Plan) -> None:
        deltas = []
        for chunk in plan.chunks:
            self._discard(chunk.sequence)
            deltas.append((chunk.sequence.id, Delta(finish=FinishReason.ERROR, error=STEP_FAILED)))
        self._emit(deltas)

    def _discard(self, sequence: Sequence) -> None:
        """Forget a sequence whose blocks may hold something other than numbers."""
        blocks = self._scheduler.pool.forget(sequence.blocks)
        self._kv.clear(blocks)
        if self._draft:
            self._draft.clear(blocks)
        self._forget(sequence.id)

    def _commit(
        self, plan: Plan, sampled: list[Sampled], embeddings: dict[str, Embedding]
    ) -> list[tuple[str, Delta]]:
        """The only place that advances sequences and frees what is finished."""
        self._steps += 1
        self._step_sizes.add(sum(chunk.count for chunk in plan.chunks))
        now_s = time.perf_counter()
        deltas, row = [], 0
        for chunk in plan.chunks:
            sequence = chunk.sequence
            if not chunk.samples:
                self._scheduler.commit(chunk)
                if (embedding := embeddings.get(sequence.id)) is not None:
                    deltas.append((sequence.id, self._embedded(sequence, embedding, now_s=now_s)))
                continue
            rows = 1 + len(chunk.drafts)
            kept, error = self._verify(chunk, sampled[row : row + rows])
            row += rows
            if error:
                self._discard(sequence)
                deltas.append((sequence.id, Delta(finish=FinishReason.ERROR, error=error)))
                continue
            delta = advance(sequence, kept, max_context=self.max_context, now_s=now_s)
            self._scheduler.commit(chunk)
            if delta.finish:
                self._forget(sequence.id)
            deltas.append((sequence.id, delta))
        return deltas

    def _embedded(self, sequence: Sequence, embedding: Embedding, *, now_s: float) -> Delta:
        """The only delta of a sequence to embed, which is finished with it."""
        if not is_finite(embedding):
            self._discard(sequence)
            return Delta(finish=FinishReason.ERROR, error=NOT_FINITE)
        self._forget(sequence.id)
        return Delta(
            embedding=embedding,
            finish=FinishReason.STOP,
            stages_ms=first_token_stages(sequence, now_s),
            cached_tokens=sequence.cached,
        )

    def _verify(self, chunk: Chunk, sampled: list[Sampled]) -> tuple[list[Sampled], str | None]:
        """The sampled tokens up to the first that is not its draft; or why there is none."""
        drafts = chunk.drafts
        accepted = 0
        while accepted < len(drafts) and sampled[accepted].token == drafts[accepted]:
            accepted += 1
        if drafts:
            self._speculator.verified(chunk.sequence, proposed=len(drafts), accepted=accepted)
        kept = sampled[: accepted + 1]
        return kept, next((one.error for one in kept if one.error), None)


def _cache(model: Model, *, blocks: int, block_size: int) -> KVCache:
    return KVCache(
        model.config, blocks=blocks, block_size=block_size, dtype=model.dtype, device=model.device
    )


def _positions(plan: Plan) -> list[Position]:
    """What to sample, in the order of the batch's logit rows."""
    return [
        Position(chunk.sequence, chunk.drafts[:ahead])
        for chunk in plan.chunks
        if chunk.samples
        for ahead in range(len(chunk.drafts) + 1)
    ]


def _note_admissions(plan: Plan) -> None:
    for chunk in plan.chunks:
        if chunk.sequence.admitted_s is None:
            chunk.sequence.admitted_s = time.perf_counter()
