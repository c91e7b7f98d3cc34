"""The draft model: a small model that guesses the next tokens of all sequences at once.

Its keys and values lie in a cache of its own with the same blocks: a block that a sequence holds,
shares or gives back holds both models'. It reads tokens only when it is asked for drafts, so it may
be behind the target: after a prompt, a hit in the prefix cache, a preemption, or a time in which
drafting did not pay. It reads what it lacks, a piece a step, before it guesses. What it has written
into a block is known by the block's hash: a sequence that finds its beginning in the prefix cache
finds the draft model's keys there too where they were written, and reads the rest where they were
not. (A drafter whose keys are taken to be there after every hit guesses from nothing.) Two
sequences may write the same shared block; what they write is the same.

Drafts are sampled as the target samples, with the same penalties, grammar and random numbers. Where
the two models agree on the distribution they agree on the token, also at a high temperature.

On the engine's thread.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from runtime.engine.batch import Rows, lay_out
from runtime.engine.draft_policy import CATCH_UP_ROWS, Ask, Drafted, DraftPolicy, Share
from runtime.engine.kv_cache import KVCache
from runtime.engine.sampling import Position, sample
from runtime.engine.sequence import Sequence
from runtime.engine.speculation import StepCost
from runtime.engine.speculator import Candidate
from runtime.models.registry import Model

log = logging.getLogger(__name__)

_UNTYPICAL_STEPS = 2  # the first ones read the weights from disk


@dataclass
class _Work:
    """One sequence's part of a proposal."""

    sequence: Sequence
    state: Drafted
    share: Share
    drafts: list[int] = field(default_factory=list)

    @property
    def wants_more(self) -> bool:
        """Whether another draft is to be made after these."""
        done = self.drafts and self.drafts[-1] in self.sequence.ending
        return len(self.drafts) < self.share.drafts and not done


class DraftModel:
    """Implements runtime.engine.speculator.Proposer.

    `reserve(sequence, tokens)` gives a sequence the blocks for so many tokens, if there are any.
    """

    method = "draft"

    def __init__(
        self, model: Model, kv: KVCache, *, reserve: Callable[[Sequence, int], bool]
    ) -> None:
        self._model = model
        self._kv = kv
        self._reserve = reserve
        self.policy = DraftPolicy()
        self._written: dict[int, bytes] = {}  # block → the hash of what its draft keys are of
        self._steps = 0
        self._broken = False

    def propose(
        self, candidates: list[Candidate], *, decoding: int, cost: StepCost
    ) -> list[Candidate]:
        """See Proposer. A fault of the draft model ends drafting, and no request."""
        if self._broken or not candidates:
            return candidates
        try:
            self._propose(candidates, decoding=decoding, cost=cost)
        except Exception:
            log.exception("the draft model failed; it is not used any more")
            self._broken = True
            for candidate in candidates:
                candidate.sequence.drafts = ()
        return [candidate for candidate in candidates if not candidate.sequence.drafts]

    def observe(self, sequence: Sequence, *, proposed: int, accepted: int) -> None:
        """See Proposer."""
        self.policy.observe(sequence.draft_record, proposed=proposed, accepted=accepted)
        if sequence.drafted:
            sequence.drafted.read += min(accepted, sequence.drafted.ahead)
            sequence.drafted.ahead = 0

    def clear(self, blocks: list[int]) -> None:
        """These blocks may hold something other than numbers."""
        self._kv.clear(blocks)
        for block in blocks:
            self._written.pop(block, None)

    def give_back(self) -> None:
        """Free the cache's memory; `take_again` before the next use."""
        self._kv.give_back()
        self._written.clear()

    def take_again(self) -> None:
        """Have the cache's memory again, empty."""
        self._kv.take_again()

    def _propose(self, candidates: list[Candidate], *, decoding: int, cost: StepCost) -> None:
        states = [self._state(candidate.sequence) for candidate in candidates]
        asks = [_ask(candidate, state) for candidate, state in zip(candidates, states, strict=True)]
        shares = self.policy.plan(asks, decoding=decoding, cost=cost)
        work = [
            _Work(candidate.sequence, state, share)
            for candidate, state, share in zip(candidates, states, shares, strict=True)
            if share.read
            and self._reserve(candidate.sequence, state.read + share.read + share.drafts)
        ]
        if not work:
            return
        for each in work:
            self._overwrite(each)
        self._step(work, [each.sequence.tokens[each.state.read :] for each in work])
        for each in work:
            each.state.read += each.share.read
            self._publish(each.sequence, each.state)
        while more := [each for each in work if each.drafts and each.wants_more]:
            self._step(more, [each.drafts[-1:] for each in more])
        for each in work:
            each.sequence.drafts = tuple(each.drafts)
            each.state.ahead = max(len(each.drafts) - 1, 0)

    def _step(self, work: list[_Work], unread: list[list[int]]) -> None:
        """Run tokens of each sequence through the model, and add a draft where one is wanted."""
        began_s = time.perf_counter()
        tokens = [
            new[: each.share.read] if not each.drafts else new
            for each, new in zip(work, unread, strict=True)
        ]
        starts = [
            each.state.read + max(len(each.drafts) - 1, 0)  # the first draft follows what is read
            for each in work
        ]
        guessing = [each for each in work if each.wants_more]
        last_rows = np.cumsum([len(new) for new in tokens]) - 1
        batch = lay_out(
            [
                Rows(each.sequence.blocks, start, new)
                for each, start, new in zip(work, starts, tokens, strict=True)
            ],
            logit_rows=last_rows[[each.wants_more for each in work]],
            block_size=self._kv.block_size,
            device=self._model.device,
        )
        logits = self._model.forward(batch, self._kv)
        positions = [Position(each.sequence, tuple(each.drafts)) for each in guessing]
        for each, one in zip(guessing, sample(logits, positions), strict=True):
            if one.error is None:
                each.drafts.append(one.token)
            else:  # no number, or no token that the grammar allows
                self._give_up(each)
        self._steps += 1
        rows = sum(map(len, tokens))
        if self._steps > _UNTYPICAL_STEPS and rows <= CATCH_UP_ROWS:
            self.policy.cost.observe(rows=rows, ms=(time.perf_counter() - began_s) * 1e3)

    def _give_up(self, work: _Work) -> None:
        """No more drafts of this sequence now. Numbers that are none must not be left behind: who
        gets the block next masks what it has not written, and a masked NaN still spoils a sum."""
        work.share = Share(work.share.read, len(work.drafts))
        self.policy.observe(work.sequence.draft_record, proposed=1, accepted=0)
        self.clear(work.sequence.blocks)
        work.sequence.drafted = None

    def _state(self, sequence: Sequence) -> Drafted:
        """What is known of the sequence; where it has just got its blocks, what they say."""
        state = sequence.drafted
        if state is None:
            known = 0
            for block, digest in zip(sequence.blocks, sequence.hashes, strict=False):
                if self._written.get(block) != digest:
                    break
                known += 1
            state = Drafted(known * self._kv.block_size, published=known)
            sequence.drafted = state
        return state

    def _overwrite(self, work: _Work) -> None:
        """Forget what the blocks that it writes to were known to hold, unless it writes that."""
        sequence, start = work.sequence, work.state.read
        end = start + work.share.read + max(work.share.drafts - 1, 0)
        for n in range(start // self._kv.block_size, -(-end // self._kv.block_size)):
            block = sequence.blocks[n]
            if sequence.hashes[n : n + 1] != [self._written.get(block)]:
                self._written.pop(block, None)

    def _publish(self, sequence: Sequence, state: Drafted) -> None:
        full = min(state.read // self._kv.block_size, len(sequence.hashes))
        for n in range(state.published, full):
            self._written[sequence.blocks[n]] = sequence.hashes[n]
        state.published = max(state.published, full)


def _ask(candidate: Candidate, state: Drafted) -> Ask:
    sequence, params = candidate.sequence, candidate.sequence.request.params
    return Ask(
        record=sequence.draft_record,
        lag=len(sequence.tokens) - state.read,
        room=candidate.room,
        remaining=params.max_tokens - sequence.generated,
    )
