"""What the engine's steps take, learned from each, and how much of prompts the next may run."""

from runtime.engine.prefill_limit import PrefillCost, PrefillLimit, prefill_ms
from runtime.engine.scheduler import Plan, Scheduler
from runtime.engine.speculation import StepCost


class Pace:
    """Two costs: of decoding rows, and of what prompts add to a step. The engine thread owns it."""

    def __init__(self) -> None:
        self.decode = StepCost()
        self._prefill = PrefillCost()

    def limit(self, scheduler: Scheduler) -> PrefillLimit | None:
        """For the next step. None: nothing decodes, or what decoding takes is not known yet."""
        decoding = scheduler.decoding
        rows = sum(1 + len(sequence.drafts) for sequence in decoding)
        decode_ms = self.decode.at(rows) if decoding else 0.0
        if not decode_ms:
            return None
        ms = prefill_ms(decode_ms=decode_ms, decoding=len(decoding), entering=scheduler.entering)
        return PrefillLimit(self._prefill, ms=ms)

    def learn(self, plan: Plan, *, ms: float) -> None:
        """A step took so long. All that does not decode is prefill: prompts to embed or to score
        too."""
        rows = sum(chunk.count for chunk in plan.chunks if chunk.is_decode)
        prefill = [(chunk.start, chunk.count) for chunk in plan.chunks if not chunk.is_decode]
        if prefill:
            self._prefill.observe(prefill, ms=ms - self.decode.at(rows))
        else:
            self.decode.observe(rows=rows, ms=ms)
