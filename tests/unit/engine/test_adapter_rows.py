"""Which rows of a batch have which adapter, and that nobody else finds what they computed."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.engine.batch import build_batch
from runtime.engine.blocks import BlockPool
from runtime.engine.prefix import extend_hashes
from runtime.engine.request import GenerationRequest, SamplingParams
from runtime.engine.scheduler import Scheduler
from runtime.engine.sequence import Sequence


@dataclass(frozen=True)
class Named:
    digest: str


ADAPTERS = [None, Named("a"), Named("b"), Named("c")]


def sequence(name: str, prompt: int, adapter: Named | None, *, salt: str = "") -> Sequence:
    request = GenerationRequest(
        id=name,
        prompt=tuple(range(1, prompt + 1)),
        params=SamplingParams(max_tokens=8),
        adapter=adapter,
        cache_salt=salt,
    )
    return Sequence(request, None, arrived_s=0.0)


@settings(derandomize=True, max_examples=150)
@given(
    jobs=st.lists(st.tuples(st.integers(1, 9), st.sampled_from(ADAPTERS)), min_size=1, max_size=9),
    budget=st.integers(3, 24),
)
def test_every_row_has_its_sequences_adapter_and_equal_ones_lie_together(jobs, budget):
    scheduler = Scheduler(BlockPool(80), block_size=4, max_seqs=8, max_batch_tokens=budget)
    for n, (prompt, adapter) in enumerate(jobs):
        scheduler.add(sequence(str(n), prompt, adapter))
    for _ in range(6):
        plan = scheduler.schedule()
        batch = build_batch(plan, block_size=4, device="cpu")
        expected = [
            chunk.sequence.request.adapter for chunk in plan.chunks for _ in range(chunk.count)
        ]
        found: list[Named | None] = [None] * len(expected)
        for run in batch.adapters:
            assert run.start < run.end
            assert found[run.start : run.end] == [None] * (run.end - run.start)
            found[run.start : run.end] = [run.adapter] * (run.end - run.start)
        assert found == expected
        # At most one run of each among the decoding sequences, and one among the others.
        assert len(batch.adapters) <= 2 * len({each.digest for each in expected if each})
        decoding = [chunk.is_decode for chunk in plan.chunks]
        assert decoding == sorted(decoding, reverse=True)
        for chunk in plan.chunks:
            if chunk.samples:
                chunk.sequence.append(7)
            scheduler.commit(chunk)


@settings(derandomize=True)
@given(
    st.lists(
        st.tuples(st.text(max_size=3), st.sampled_from([None, "", "a", "b", "tenant"])),
        min_size=2,
        max_size=2,
        unique=True,
    )
)
def test_block_hashes_tell_tenants_and_adapters_apart(owners):
    hashes = []
    for salt, digest in owners:
        adapter = None if digest is None else Named(digest)
        each = sequence("s", 8, adapter, salt=salt)
        extend_hashes(each, tokens=8, block_size=4)
        hashes.append(each.hashes)
    first, second = hashes
    assert not set(first) & set(second)


def test_the_same_adapter_of_the_same_tenant_shares():
    hashes = []
    for name in "xy":
        each = sequence(name, 8, Named("a"), salt="t")
        extend_hashes(each, tokens=8, block_size=4)
        hashes.append(each.hashes)
    assert hashes[0] == hashes[1]
