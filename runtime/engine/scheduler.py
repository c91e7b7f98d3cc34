"""The scheduler decides what each engine step runs. It imports no torch and knows no time.

There is no prefill phase and no decode phase (the view of vLLM's v1 scheduler): each sequence has
`computed` tokens that chase its `tokens`, and a step runs some of the difference for each, at most
`max_batch_tokens` in all:

1. Decoding sequences first, their last token and the drafts after it, so that a long prompt never
   stops them; how much of it may slow them down is a PrefillLimit's to say.
2. Then running sequences whose prompt (or recomputation) is unfinished, by class and arrival.
3. Then waiting sequences, in the order of waiting.py, while there is room for their whole prompt.
   What the prefix cache holds of it is shared and not computed again.

A prompt whose tokens' log probabilities are asked for needs the logits of every row, which are
large: it comes from no cache, and all of these together get `max_scored_tokens` in a step.

When the pool has no block for a running sequence, the youngest running one of the lowest class is
*preempted*: its blocks are freed and it waits, in its place in line, to be computed again from its
tokens. Sampling is keyed by position, so the output does not change.
"""

from bisect import insort
from dataclasses import dataclass, replace
from typing import Protocol

from runtime.engine.blocks import BlockPool
from runtime.engine.prefill_limit import PrefillLimit
from runtime.engine.prefix import extend_hashes
from runtime.engine.sequence import Phase, Sequence
from runtime.engine.waiting import WaitingLine, by_urgency


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens start..end of a sequence and the drafts after them, to be run in one step."""

    sequence: Sequence
    start: int
    end: int  # drafts not counted
    samples: bool  # whether the step yields the sequence's next token
    drafts: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """Rows of the batch."""
        return self.end - self.start + len(self.drafts)

    @property
    def scored(self) -> range:
        """Places in the sequence whose logits say how likely the prompt's next token was."""
        sequence = self.sequence
        if not sequence.unscored:
            return range(0)
        first = max(self.start, len(sequence.prompt_logprobs))
        return range(first, min(self.end, len(sequence.request.prompt) - 1))

    @property
    def is_decode(self) -> bool:
        """Whether all that is run is the last token and its drafts."""
        return self.samples and self.end - self.start == 1


@dataclass(frozen=True, slots=True)
class Plan:
    """What one step runs: decoding sequences first, then prefill chunks; in either, those with the
    same adapter lie together."""

    chunks: tuple[Chunk, ...]


class PrefixSource(Protocol):
    """Where blocks come from that the pool does not have: an earlier replica's."""

    def note(self, hashes: list[bytes]) -> None:
        """A prompt begins with these full blocks."""
        ...

    def load(self, hashes: list[bytes], blocks: list[int]) -> int:
        """Fill blocks with the beginning of a chain, as far as it is known; how many."""
        ...


def _place(chunk: Chunk) -> tuple[bool, str]:
    adapter = chunk.sequence.request.adapter
    return not chunk.is_decode, adapter.digest if adapter else ""


class Scheduler:
    """Waiting and running sequences, and the blocks they hold. The engine thread owns it."""

    def __init__(
        self,
        pool: BlockPool,
        *,
        block_size: int,
        max_seqs: int,
        max_batch_tokens: int,
        prefixes: PrefixSource | None = None,
        max_scored_tokens: int | None = None,
    ) -> None:
        self.pool = pool
        self._prefixes = prefixes
        self.block_size = block_size
        self.max_seqs = max_seqs
        self.max_batch_tokens = max_batch_tokens
        self.max_scored_tokens = max_scored_tokens or max_batch_tokens
        self._may_score = 0  # of these, in what is left of this step
        self.waiting = WaitingLine()
        self.running: list[Sequence] = []  # the most urgent first
        self.preemptions = 0
        self.prefix_queries = 0  # prompt tokens looked up in the prefix cache
        self.prefix_hits = 0  # and found

    @property
    def has_work(self) -> bool:
        """Whether any sequence is unfinished."""
        return bool(self.waiting or self.running)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence. The caller has checked that it can ever fit."""
        self.waiting.add(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence out, in whatever phase it is, and free its blocks at once."""
        if sequence.phase is Phase.RUNNING:
            self.running.remove(sequence)
        elif sequence.phase is Phase.WAITING:
            self.waiting.remove(sequence)
        self._free_blocks(sequence)
        sequence.phase = Phase.FINISHED
        if not self.has_work:
            self.waiting.settle()

    def schedule(self, limit: PrefillLimit | None = None) -> Plan:
        """Choose the next step's chunks and allocate their blocks; `limit` bounds the prompts'."""
        budget = self.max_batch_tokens
        self._may_score = self.max_scored_tokens
        chunks: list[Chunk] = []
        prefilling = [seq for seq in self.running if not seq.is_decoding]
        for sequence in self.decoding + prefilling:
            if budget == 0:
                break
            if sequence.phase is not Phase.RUNNING:
                continue  # preempted by one before it
            granted = self._granted(sequence, budget, limit)
            chunk = self._make_room(self._chunk(sequence, granted)) if granted else None
            if chunk is not None:
                chunks.append(chunk)
                budget -= chunk.count
        # A sequence may have been preempted after its chunk was chosen.
        chunks = [chunk for chunk in chunks if chunk.sequence.phase is Phase.RUNNING]

        while budget > 0 and self.waiting and len(self.running) < self.max_seqs:
            sequence = self.waiting.peek()
            if (limit and not limit.is_open) or not self._admit(sequence):
                break
            if granted := self._granted(sequence, budget, limit):
                chunk = self._chunk(sequence, granted)
                chunks.append(chunk)
                budget -= chunk.count
        return Plan(tuple(sorted(chunks, key=_place)))

    @property
    def decoding(self) -> list[Sequence]:
        """The running sequences that lack their last token only."""
        return [seq for seq in self.running if seq.is_decoding]

    @property
    def entering(self) -> int:
        """How many sequences lack their first token and need not wait for a place."""
        places = self.max_seqs - len(self.running)
        return len(self.running) - len(self.decoding) + min(places, len(self.waiting))

    def reserve(self, sequence: Sequence, tokens: int) -> bool:
        """Give a running sequence the blocks of so many tokens; False: there are not enough."""
        missing = self._missing(sequence, tokens)
        if missing > self.pool.free_count:
            return False
        if missing > 0:
            sequence.blocks += self.pool.allocate(missing)
        return True

    def commit(self, chunk: Chunk) -> None:
        """The chunk ran, and its sequence has the tokens that came of it: what is computed now is
        all but a sampled last token. Full blocks become findable."""
        sequence = chunk.sequence
        if sequence.phase is not Phase.RUNNING:
            return
        if chunk.samples:
            self.waiting.made(sequence, len(sequence.tokens) - chunk.end)
        size = self.block_size
        first = sequence.computed // size
        sequence.computed = len(sequence.tokens) - 1 if chunk.samples else chunk.end
        extend_hashes(sequence, tokens=sequence.computed, block_size=size)
        for n in range(first, sequence.computed // size):
            self.pool.publish(sequence.blocks[n], sequence.hashes[n])

    def _admit(self, sequence: Sequence) -> bool:
        """Give a waiting sequence the blocks of its whole prompt; False: they are not there."""
        known = len(sequence.tokens) - 1  # the last token is always run, for its logits
        extend_hashes(sequence, tokens=known, block_size=self.block_size)
        # What is pooled over all tokens needs the hidden states of all: the cache has none. Nor has
        # it the logits of a prompt that is scored.
        lookup = sequence.request.pooling in (None, "last") and not sequence.unscored
        hashes = sequence.hashes[: known // self.block_size] if lookup else []
        cached = self.pool.find(hashes)
        missing = self._blocks_for(len(sequence.tokens)) - len(cached)
        if missing > self.pool.free_after_sharing(cached):
            return False
        self.pool.share(cached)
        # The whole prompt's blocks at once: chunks in progress cannot starve each other.
        fresh = self.pool.allocate(missing)
        sequence.blocks = cached + fresh
        stored = self._load(hashes[len(cached) :], fresh)
        sequence.computed = (len(cached) + stored) * self.block_size
        sequence.phase = Phase.RUNNING
        again = sequence.admissions > 0
        sequence.admissions += 1
        prompt_tokens = 0 if again else len(sequence.tokens) - sequence.computed
        self.waiting.take(sequence, prompt_tokens=prompt_tokens)
        insort(self.running, sequence, key=by_urgency)
        if lookup and not again:
            sequence.cached = sequence.computed
            self.prefix_queries += len(sequence.tokens)
            self.prefix_hits += sequence.cached
            if self._prefixes:
                self._prefixes.note(hashes)
        return True

    def _load(self, hashes: list[bytes], blocks: list[int]) -> int:
        """Fill the first of these blocks from where an earlier replica left them; how many."""
        loaded = self._prefixes.load(hashes, blocks) if self._prefixes and hashes else 0
        for block, digest in zip(blocks[:loaded], hashes, strict=False):
            self.pool.publish(block, digest)
        return loaded

    def _granted(self, sequence: Sequence, budget: int, limit: PrefillLimit | None) -> int:
        """How much of the budget this sequence may use; what it is for is used."""
        if sequence.is_decoding:
            return budget
        tokens = min(len(sequence.tokens) - sequence.computed, budget)
        if sequence.unscored:
            tokens = min(tokens, self._may_score)
        if limit and tokens:
            tokens = limit.grant(sequence.computed, tokens)
        if sequence.unscored:
            self._may_score -= tokens
        return tokens

    def _chunk(self, sequence: Sequence, budget: int) -> Chunk:
        start, length = sequence.computed, len(sequence.tokens)
        end = min(length, start + budget)
        drafts = sequence.drafts[: budget - (end - start)] if sequence.is_decoding else ()
        samples = end == length and sequence.request.pooling is None
        return Chunk(sequence, start, end, samples, drafts)

    def _make_room(self, chunk: Chunk) -> Chunk | None:
        """Allocate what the chunk lacks, preempting less urgent sequences; None: itself preempted.

        Drafts are dropped rather than that anybody is preempted for them.
        """
        sequence = chunk.sequence
        if self._missing(sequence, chunk.end + len(chunk.drafts)) > self.pool.free_count:
            chunk = replace(chunk, drafts=())
        missing = self._missing(sequence, chunk.end + len(chunk.drafts))
        while missing > self.pool.free_count:
            last = self.running[-1]
            self._preempt(last)
            if last is sequence:
                return None
        if missing > 0:
            sequence.blocks += self.pool.allocate(missing)
        return chunk

    def _missing(self, sequence: Sequence, tokens: int) -> int:
        return self._blocks_for(tokens) - len(sequence.blocks)

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._free_blocks(sequence)
        sequence.phase = Phase.WAITING
        sequence.computed = 0
        sequence.drafts = ()
        self.waiting.put_back(sequence)
        self.preemptions += 1

    def _free_blocks(self, sequence: Sequence) -> None:
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.drafted = None

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)
