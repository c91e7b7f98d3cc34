"""The scheduler decides what each engine step runs. It imports no torch and knows no time.

There is no prefill phase and no decode phase (the view of vLLM's v1 scheduler): each sequence has
`computed` tokens that chase its `tokens`, and a step runs some of the difference for each, at most
`max_batch_tokens` in all:

1. Decoding sequences first, one token each, so that a long prompt never stops them.
2. Then running sequences whose prompt (or recomputation) is unfinished, in order of arrival.
3. Then waiting sequences, in order of arrival, while there is room for their whole prompt.

When the pool has no block for a running sequence, the youngest running one is *preempted*: its
blocks are freed and it waits, first in line, to be computed again from its tokens. Sampling is
keyed by position, so the output does not change.
"""

from collections import deque
from dataclasses import dataclass

from runtime.engine.blocks import BlockPool
from runtime.engine.sequence import Phase, Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens start..end of a sequence, to be run in one step."""

    sequence: Sequence
    start: int
    end: int
    samples: bool  # whether the step yields the sequence's next token
    is_decode: bool  # one token, the last one

    @property
    def count(self) -> int:
        """Tokens in the chunk."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Plan:
    """What one step runs: decoding sequences first, then prefill chunks."""

    chunks: tuple[Chunk, ...]

    @property
    def sampled(self) -> tuple[Sequence, ...]:
        """The sequences that get a token, in the order of the batch's logit rows."""
        return tuple(chunk.sequence for chunk in self.chunks if chunk.samples)


class Scheduler:
    """Waiting and running sequences, and the blocks they hold. The engine thread owns it."""

    def __init__(
        self, pool: BlockPool, *, block_size: int, max_seqs: int, max_batch_tokens: int
    ) -> None:
        self.pool = pool
        self.block_size = block_size
        self.max_seqs = max_seqs
        self.max_batch_tokens = max_batch_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # by arrival
        self.preemptions = 0

    @property
    def has_work(self) -> bool:
        """Whether any sequence is unfinished."""
        return bool(self.waiting or self.running)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence. The caller has checked that it can ever fit."""
        self.waiting.append(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence out, in whatever phase it is, and free its blocks at once."""
        if sequence.phase is Phase.RUNNING:
            self.running.remove(sequence)
        elif sequence.phase is Phase.WAITING:
            self.waiting.remove(sequence)
        self._free_blocks(sequence)
        sequence.phase = Phase.FINISHED

    def schedule(self) -> Plan:
        """Choose the next step's chunks and allocate their blocks."""
        budget = self.max_batch_tokens
        decodes: list[Chunk] = []
        prefills: list[Chunk] = []
        decoding = [seq for seq in self.running if len(seq.tokens) - seq.computed == 1]
        prefilling = [seq for seq in self.running if len(seq.tokens) - seq.computed > 1]
        for sequence in decoding + prefilling:
            if budget == 0:
                break
            if sequence.phase is not Phase.RUNNING:
                continue  # preempted by one before it
            chunk = self._chunk(sequence, budget)
            if not self._make_room(chunk):
                continue
            (decodes if chunk.is_decode else prefills).append(chunk)
            budget -= chunk.count
        # A sequence may have been preempted after its chunk was chosen.
        decodes = [chunk for chunk in decodes if chunk.sequence.phase is Phase.RUNNING]
        prefills = [chunk for chunk in prefills if chunk.sequence.phase is Phase.RUNNING]

        while budget > 0 and self.waiting and len(self.running) < self.max_seqs:
            sequence = self.waiting[0]
            if self._blocks_for(len(sequence.tokens)) > self.pool.free_count:
                break
            self.waiting.popleft()
            self.running.append(sequence)
            sequence.phase = Phase.RUNNING
            # The whole prompt's blocks at once: chunks in progress cannot starve each other.
            sequence.blocks = self.pool.allocate(self._blocks_for(len(sequence.tokens)))
            chunk = self._chunk(sequence, budget)
            (decodes if chunk.is_decode else prefills).append(chunk)
            budget -= chunk.count
        return Plan((*decodes, *prefills))

    def commit(self, plan: Plan) -> None:
        """The step ran: its chunks' keys and values are in the cache."""
        for chunk in plan.chunks:
            if chunk.sequence.phase is Phase.RUNNING:
                chunk.sequence.computed = chunk.end

    def _chunk(self, sequence: Sequence, budget: int) -> Chunk:
        start, length = sequence.computed, len(sequence.tokens)
        end = min(length, start + budget)
        return Chunk(
            sequence,
            start,
            end,
            samples=end == length,
            is_decode=end == length and end - start == 1,
        )

    def _make_room(self, chunk: Chunk) -> bool:
        """Allocate what the chunk lacks, preempting younger sequences; False: itself preempted."""
        sequence = chunk.sequence
        missing = self._blocks_for(chunk.end) - len(sequence.blocks)
        while missing > self.pool.free_count:
            youngest = self.running[-1]
            self._preempt(youngest)
            if youngest is sequence:
                return False
        if missing > 0:
            last = sequence.blocks[-1] if sequence.blocks else None
            sequence.blocks += self.pool.allocate(missing, after=last)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._free_blocks(sequence)
        sequence.phase = Phase.WAITING
        sequence.computed = 0
        self.waiting.appendleft(sequence)
        self.preemptions += 1

    def _free_blocks(self, sequence: Sequence) -> None:
        self.pool.release(sequence.blocks)
        sequence.blocks = []

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)
