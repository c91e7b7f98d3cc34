"""How many tokens the engine's steps run: a histogram that costs a step less than a microsecond.

The engine thread adds, the metrics read. Imports no torch.
"""

BOUNDS = tuple(2**n for n in range(13))  # 1 to 4096 tokens; one more class has what is over


class StepSizes:
    """Counts steps by their tokens: `counts[n]` had at most BOUNDS[n], and more than the bound
    before; the last one had more than all bounds."""

    def __init__(self) -> None:
        self.tokens = 0
        self.counts = [0] * (len(BOUNDS) + 1)

    def add(self, tokens: int) -> None:
        """One step with that many tokens, one or more."""
        self.tokens += tokens
        self.counts[min((tokens - 1).bit_length(), len(BOUNDS))] += 1
