"""What an engine may use, and what it says of itself. Any thread; imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass

from runtime.engine.speculator import Tally


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """What one engine may use."""

    max_seqs: int = 16  # sequences in one batch
    max_batch_tokens: int = 512  # tokens in one step; long prompts are split into chunks
    kv_cache_bytes: int = 512 * 2**20
    block_size: int = 16  # tokens in a KV block
    max_context: int | None = None  # tokens of prompt and output; None: the model's own limit
    speculation: bool = True  # it never changes an output
    prefix_snapshot_bytes: int = 0  # KV blocks kept for the next replica


@dataclass(frozen=True, kw_only=True)
class EngineStats:
    """A snapshot of the engine's counters and gauges."""

    running: int
    waiting: int
    blocks: int
    free_blocks: int
    preemptions: int
    steps: int
    prefix_queries: int  # prompt tokens looked up in the prefix cache
    prefix_hits: int  # and found
    drafts_proposed: tuple[int, ...]  # by position in the proposal
    drafts_accepted: tuple[int, ...]
    drafts_by_method: Mapping[str, Tally]  # the same, for each way to guess that is in use
    step_tokens: int  # run in all steps, drafts too
    step_sizes: tuple[int, ...]  # steps by their tokens; see step_sizes.py
