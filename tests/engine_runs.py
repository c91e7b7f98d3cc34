"""An engine with a tiny model for tests, and what it emits."""

import queue
from collections import defaultdict

from runtime.engine.limits import EngineLimits
from runtime.engine.loop import Engine
from runtime.engine.request import Delta, GenerationRequest, SamplingParams

EOS = 0


class Running:
    """An engine and what it emits, by request."""

    def __init__(self, model, tokenizer, *, draft=None, prefixes=None, **limits) -> None:
        self._batches: queue.Queue[list[tuple[str, Delta]]] = queue.Queue()
        self.deltas: dict[str, list[Delta]] = defaultdict(list)
        self.engine = Engine(
            model,
            tokenizer,
            eos_token_ids=(EOS,),
            limits=EngineLimits(**({"kv_cache_bytes": 1 << 20, "block_size": 4} | limits)),
            emit=self._batches.put,
            draft=draft,
            prefixes=prefixes,
        )

    def __enter__(self):
        self.engine.start()
        return self

    def __exit__(self, *_):
        self.engine.stop()

    def submit(self, name, prompt, *, cache_salt="", **params) -> None:
        sampling = SamplingParams(**({"max_tokens": 12, "temperature": 0.0} | params))
        self.engine.submit(
            GenerationRequest(id=name, prompt=tuple(prompt), params=sampling, cache_salt=cache_salt)
        )

    def embed(self, name, prompt) -> None:
        params = SamplingParams(max_tokens=0)
        self.engine.submit(
            GenerationRequest(id=name, prompt=tuple(prompt), params=params, pooling="mean")
        )

    def step(self) -> None:
        """Take in what one engine step emits."""
        for name, delta in self._batches.get(timeout=30):
            self.deltas[name].append(delta)

    def finish(self, *names) -> None:
        while not all(self.deltas[name] and self.deltas[name][-1].finish for name in names):
            self.step()

    def tokens(self, name) -> list[int]:
        return [token for delta in self.deltas[name] for token in delta.tokens]

    def text(self, name) -> str:
        return "".join(delta.text for delta in self.deltas[name])
