"""The engine of an encoder: one thread, one loop.

    take in requests and aborts → choose whole texts under a token budget → run → pool → emit

An encoder has no cache, and a text cannot be split: each token sees all of its text. So there is
nothing to schedule but the order, which is that of arrival. To the server it is an engine like the
decoder's (loop.py): the same requests, all to embed, and the same deltas.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable

import torch

from runtime.engine.encoder_batch import build_encoder_batch
from runtime.engine.pooling import NOT_FINITE, is_finite, pooled_rows, sum_rows, unit_length
from runtime.engine.request import Delta, Embedding, FinishReason, GenerationRequest
from runtime.engine.thread import STEP_FAILED, Emit, run_to_end
from runtime.models.registry import Encoder

log = logging.getLogger(__name__)

_Waiting = tuple[GenerationRequest, float]  # and when it came, time.perf_counter()


class EncoderEngine:
    """Serves one encoder. Build it, `start()` it, `submit()` requests, `stop()` it."""

    def __init__(
        self,
        model: Encoder,
        *,
        max_batch_tokens: int = 512,
        max_context: int | None = None,
        emit: Emit,
        on_crash: Callable[[], None] = lambda: None,
    ) -> None:
        """`max_batch_tokens` bounds a step, but for one text that is longer by itself. `on_crash`
        is called on the engine's thread if the loop itself ever fails."""
        self._model = model
        self._max_batch_tokens = max_batch_tokens
        self._emit = emit
        self._on_crash = on_crash
        longest = model.config.max_positions
        self.max_context = min(max_context or longest, longest)
        self.vocab_size = model.config.vocab_size
        self._waiting: dict[str, _Waiting] = {}  # by arrival
        self._inbox: queue.SimpleQueue[GenerationRequest | str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the engine's thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the loop after the step in progress; unfinished requests end with ABORT."""
        self._inbox.put(None)
        self._thread.join()

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request that has a pooling, fits `max_context` and is of the vocabulary."""
        self._inbox.put(request)

    def abort(self, request_id: str) -> None:
        """Forget a request before the next step; unknown ids are fine."""
        self._inbox.put(request_id)

    def sleep(self) -> None:
        """Nothing: there is no KV memory to give back."""

    # The loop -----------------------------------------------------------------------------------

    def _run(self) -> None:
        run_to_end(self._loop, unfinished=self._waiting, emit=self._emit, on_crash=self._on_crash)

    @torch.inference_mode()
    def _loop(self) -> None:
        while self._take_in():
            batch = self._choose()
            began_s = time.perf_counter()
            try:
                vectors = self._embed([request for request, _ in batch])
            except Exception:  # one bad batch must not end the process
                log.exception("a step of %d texts failed", len(batch))
                failed = Delta(finish=FinishReason.ERROR, error=STEP_FAILED)
                self._emit([(request.id, failed) for request, _ in batch])
                continue
            finally:
                for request, _ in batch:
                    del self._waiting[request.id]
            ended_s = time.perf_counter()
            self._emit(
                [
                    (request.id, _delta(vectors[request.id], arrived_s, began_s, ended_s))
                    for request, arrived_s in batch
                ]
            )

    def _take_in(self) -> bool:
        """Drain the inbox, waiting only when there is nothing to run; False: stop."""
        while True:
            try:
                message = self._inbox.get(block=not self._waiting)
            except queue.Empty:
                return True
            if message is None:
                return False
            if isinstance(message, str):
                self._waiting.pop(message, None)
            else:
                self._waiting[message.id] = (message, time.perf_counter())

    def _choose(self) -> list[_Waiting]:
        """The texts of the next step: the oldest that fit the budget together, at least one."""
        chosen: list[_Waiting] = []
        budget = self._max_batch_tokens
        for waiting in self._waiting.values():
            budget -= len(waiting[0].prompt)
            if chosen and budget < 0:
                break
            chosen.append(waiting)
        return chosen

    def _embed(self, requests: list[GenerationRequest]) -> dict[str, Embedding]:
        """The vector of each request, by its id."""
        requests = sorted(requests, key=lambda request: len(request.prompt))
        batch = build_encoder_batch(
            [request.prompt for request in requests], device=self._model.device
        )
        hidden = self._model.forward(batch)
        vectors, row = {}, 0
        for request in requests:
            length = len(request.prompt)
            rows = pooled_rows(request.pooling or "mean", start=0, end=length, length=length)
            total = sum_rows(hidden[row + rows.start : row + rows.stop])
            vectors[request.id] = unit_length(total)
            row += length
        return vectors


def _delta(vector: Embedding, arrived_s: float, began_s: float, ended_s: float) -> Delta:
    if not is_finite(vector):
        return Delta(finish=FinishReason.ERROR, error=NOT_FINITE)
    stages_ms = {"queue": (began_s - arrived_s) * 1e3, "prefill": (ended_s - began_s) * 1e3}
    return Delta(embedding=vector, finish=FinishReason.STOP, stages_ms=stages_ms)
