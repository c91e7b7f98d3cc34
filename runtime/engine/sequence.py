"""One sequence on its way through the engine."""

import secrets
from collections import Counter
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from runtime.engine.draft_policy import Drafted, Record
from runtime.engine.output import OutputText
from runtime.engine.request import GenerationRequest, TokenLogprob
from runtime.engine.speculation import PromptLookup


class Phase(StrEnum):
    """Where a sequence is."""

    WAITING = "waiting"  # not admitted yet, or preempted
    RUNNING = "running"  # holds blocks
    FINISHED = "finished"


class Sequence:
    """Append-only tokens and how many of them have their keys and values in the cache.

    The engine thread owns it. `computed` chases `len(tokens)`: the difference is what the scheduler
    still has to run, whether that is a prompt, the last sampled token, or all of it again after a
    preemption. `drafts` are guesses at the tokens that follow, to be verified in the next step.
    """

    def __init__(
        self,
        request: GenerationRequest,
        text: OutputText,
        *,
        arrived_s: float,
        eos: frozenset[int] = frozenset(),
    ) -> None:
        self.request = request
        params = request.params
        # Tokens that end it
        self.ending = params.stop_token_ids | (frozenset() if params.ignore_eos else eos)
        self.grammar = request.grammar.start() if request.grammar else None
        self.text = text
        self.arrived_s = arrived_s  # time.perf_counter()
        self.admitted_s: float | None = None
        self.phase = Phase.WAITING
        self.priority = request.priority
        self.order = 0  # of arrival
        self.admissions = 0
        self.bypassed = 0  # how often it was passed over as the oldest that waited
        self.tokens: list[int] = list(request.prompt)
        self.computed = 0
        self.cached = 0  # prompt tokens that were found in the cache at first admission
        self.blocks: list[int] = []
        self.hashes: list[bytes] = []  # of its full blocks, as far as they are known
        self.drafts: tuple[int, ...] = ()
        self.prompt_logprobs: list[TokenLogprob] = []  # where asked for, of its second token on
        self.lookup = PromptLookup(self.tokens)
        self.drafted: Drafted | None = None  # None: it holds no blocks, or was never drafted for
        self.draft_record = Record()
        self.pooled: npt.NDArray[np.float64] | None = None  # see pooling.py
        self.output_counts: Counter[int] = Counter()
        seed = params.seed
        self.seed = secrets.randbits(64) if seed is None else seed

    @property
    def id(self) -> str:
        """The request's id."""
        return self.request.id

    @property
    def generated(self) -> int:
        """Output tokens so far."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def is_decoding(self) -> bool:
        """Whether all that lacks is its last token, and from it the next one."""
        return len(self.tokens) - self.computed == 1 and self.request.pooling is None

    @property
    def unscored(self) -> bool:
        """Whether log probabilities of its prompt are asked for and not all there."""
        asked = self.request.params.prompt_logprobs is not None
        return asked and len(self.prompt_logprobs) < len(self.request.prompt) - 1

    def append(self, token: int) -> None:
        """Add a sampled token."""
        self.tokens.append(token)
        self.output_counts[token] += 1
        if self.grammar and token not in self.ending:
            self.grammar.advance(token)
