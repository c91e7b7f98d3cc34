"""The scheduler under any interleaving of arrivals, aborts, finishes and steps."""

from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.strategies import data, integers, lists, none, sampled_from

from glowplug.contracts import Priority
from runtime.engine.blocks import BlockPool
from runtime.engine.prefill_limit import PrefillCost, PrefillLimit
from runtime.engine.request import GenerationRequest, SamplingParams, TokenLogprob
from runtime.engine.scheduler import Scheduler
from runtime.engine.sequence import Phase, Sequence
from runtime.engine.waiting import by_urgency

BLOCKS, BLOCK_SIZE, MAX_SEQS, BUDGET = 12, 4, 5, 16


class NoText:
    """The scheduler never looks at text."""


def sequence(
    name: str, prompt: int, max_tokens: int = 8, *, first: int = 1, **who: object
) -> Sequence:
    tokens = tuple(range(first, first + prompt))
    request = GenerationRequest(
        id=name, prompt=tokens, params=SamplingParams(max_tokens=max_tokens), **who
    )
    return Sequence(request, NoText(), arrived_s=0.0)


def scheduler(blocks: int = BLOCKS, budget: int = BUDGET) -> Scheduler:
    return Scheduler(
        BlockPool(blocks), block_size=BLOCK_SIZE, max_seqs=MAX_SEQS, max_batch_tokens=budget
    )


def run(sched: Scheduler) -> list[Sequence]:
    """One step: every sampled sequence gets a token; returns those that are complete."""
    complete = []
    for chunk in sched.schedule().chunks:
        seq = chunk.sequence
        if chunk.samples:
            seq.append(7)
        sched.commit(chunk)
        if seq.generated >= seq.request.params.max_tokens:
            sched.finish(seq)
            complete.append(seq)
    return complete


class Steps(RuleBasedStateMachine):
    """Sequences that always fit alone come, run, are aborted and finish."""

    def __init__(self) -> None:
        super().__init__()
        self.sched = scheduler()
        self.live: dict[str, Sequence] = {}
        self.count = 0

    @rule(
        prompt=integers(1, 30),
        max_tokens=integers(1, 18),
        first=integers(1, 2),
        tenant=sampled_from("ab"),
        priority=sampled_from(Priority),
    )
    def arrive(self, prompt, max_tokens, first, tenant, priority):
        who = {"tenant": tenant, "priority": priority}
        seq = sequence(f"s{self.count}", prompt, max_tokens, first=first, **who)
        self.count += 1
        self.live[seq.id] = seq
        self.sched.add(seq)

    @precondition(lambda self: self.live)
    @rule(data=data())
    def abort(self, data):
        name = sorted(self.live)[data.draw(integers(0, len(self.live) - 1))]
        seq = self.live.pop(name)
        self.sched.finish(seq)
        assert seq.blocks == []

    @rule(data=data(), drafts=lists(integers(5, 8), max_size=4), prefill_ms=none() | integers(0, 9))
    def step(self, data, drafts, prefill_ms):
        self.accepted = data
        for seq in self.sched.decoding:
            room = seq.request.params.max_tokens - seq.generated - 1
            seq.drafts = tuple(drafts[: max(room, 0)])
        before = {name: (len(seq.tokens), seq.computed) for name, seq in self.live.items()}
        cost = PrefillCost()
        cost.observe([(0, 4)], ms=4.0)
        limit = None if prefill_ms is None else PrefillLimit(cost, ms=prefill_ms)
        plan = self.sched.schedule(limit)
        chunks = plan.chunks
        assert bool(chunks) == bool(self.live)  # work is never left standing
        assert sum(chunk.count for chunk in chunks) <= BUDGET
        assert len({chunk.sequence.id for chunk in chunks}) == len(chunks)
        kinds = [chunk.is_decode for chunk in chunks]
        assert kinds == sorted(kinds, reverse=True)  # decoding sequences come first
        for chunk in chunks:
            assert chunk.sequence.phase is Phase.RUNNING
            assert chunk.start == chunk.sequence.computed < chunk.end <= len(chunk.sequence.tokens)
            assert len(chunk.sequence.blocks) * BLOCK_SIZE >= chunk.end + len(chunk.drafts)
            written = chunk.sequence.blocks[chunk.start // BLOCK_SIZE :]
            assert all(self.sched.pool.references(block) == 1 for block in written)
            assert not chunk.drafts or chunk.is_decode
            assert chunk.samples == (chunk.end == len(chunk.sequence.tokens))
        for chunk in chunks:
            seq = chunk.sequence
            accepted = self.accepted.draw(integers(0, len(chunk.drafts))) if chunk.drafts else 0
            for token in (*chunk.drafts[:accepted], 7) if chunk.samples else ():
                seq.append(token)
            self.sched.commit(chunk)
            assert seq.computed == (len(seq.tokens) - 1 if chunk.samples else chunk.end)
            seq.drafts = ()
            if seq.generated >= seq.request.params.max_tokens:
                self.sched.finish(seq)
                del self.live[seq.id]
        for name, seq in self.live.items():
            assert len(seq.tokens) >= before[name][0]  # nothing generated is lost

    @invariant()
    def memory_adds_up(self):
        held = [block for seq in self.live.values() for block in seq.blocks]
        pool = self.sched.pool
        assert [pool.references(block) for block in range(BLOCKS)] == [
            held.count(block) for block in range(BLOCKS)
        ]
        assert pool.free_count == BLOCKS - len(set(held))
        assert len(self.sched.running) <= MAX_SEQS
        assert self.sched.running == sorted(self.sched.running, key=by_urgency)
        for seq in self.live.values():
            assert seq.phase is not Phase.WAITING or (seq.blocks == [] and seq.computed == 0)

    def teardown(self):
        for _ in range(2000):
            if not self.sched.has_work:
                break
            run(self.sched)
        assert not self.sched.has_work
        assert self.sched.pool.free_count == BLOCKS


TestSteps = Steps.TestCase
TestSteps.settings = settings(max_examples=80, stateful_step_count=40, derandomize=True)


@given(lists(integers(1, 20), min_size=1, max_size=12))
@settings(derandomize=True, max_examples=50)
def test_sequences_of_one_length_finish_in_order_of_arrival(prompts):
    sched = scheduler(blocks=60)
    for n, _ in enumerate(prompts):
        sched.add(sequence(f"{n}", prompts[0], max_tokens=3))
    finished: list[str] = []
    while sched.has_work:
        finished += [seq.id for seq in run(sched)]
    assert finished == [f"{n}" for n in range(len(prompts))]


def test_a_long_prompt_is_split_and_never_stops_a_decoding_sequence():
    sched = scheduler(blocks=40, budget=8)
    decoding = sequence("decoding", 2, max_tokens=50)
    sched.add(decoding)
    run(sched)
    long = sequence("long", 40, max_tokens=2)
    sched.add(long)
    steps = 0
    while long.generated == 0:
        before = decoding.generated
        run(sched)
        steps += 1
        assert decoding.generated == before + 1
    assert steps == 6  # 40 tokens at 7 a step beside one decoding token


def test_the_youngest_is_preempted_and_comes_back_first():
    sched = scheduler(blocks=4, budget=32)
    old, young = sequence("old", 7, max_tokens=9), sequence("young", 7, max_tokens=9, first=100)
    sched.add(old)
    sched.add(young)
    while sched.preemptions == 0:
        run(sched)
    assert (old.phase, young.phase) == (Phase.RUNNING, Phase.WAITING)
    late = sequence("late", 1)
    sched.add(late)
    assert sched.waiting.peek() is young
    generated = young.generated
    while old.phase is not Phase.FINISHED:
        run(sched)
    while young.phase is not Phase.FINISHED:
        run(sched)
    assert young.generated == 9 > generated


def test_a_prompt_waits_until_all_of_it_fits():
    sched = scheduler(blocks=4)
    first, second = sequence("first", 9, max_tokens=4), sequence("second", 9)
    sched.add(first)
    sched.add(second)
    run(sched)
    assert (first.phase, second.phase) == (Phase.RUNNING, Phase.WAITING)
    while first.phase is not Phase.FINISHED:
        run(sched)
    run(sched)
    assert second.phase is Phase.RUNNING
    assert sched.preemptions == 0


def test_the_lowest_class_is_preempted_even_when_it_is_older():
    sched = scheduler(blocks=4, budget=32)
    low = sequence("low", 7, max_tokens=9, priority=Priority.LOW)
    normal = sequence("normal", 7, max_tokens=9, first=100)
    sched.add(low)
    sched.add(normal)
    while sched.preemptions == 0:
        run(sched)
    assert (low.phase, normal.phase) == (Phase.WAITING, Phase.RUNNING)


def test_an_urgent_request_is_admitted_before_what_was_preempted_for_it():
    sched = scheduler(blocks=4, budget=32)
    old, young = sequence("old", 7, max_tokens=9), sequence("young", 7, max_tokens=9, first=100)
    sched.add(old)
    sched.add(young)
    while sched.preemptions == 0:
        run(sched)
    sched.add(sequence("also normal", 3, tenant="another"))
    sched.add(sequence("urgent", 3, priority=Priority.HIGH))
    finished = []
    while sched.has_work:
        finished += [seq.id for seq in run(sched)]
        started = [seq.id for seq in sched.running]
        assert "also normal" not in started or young.admissions == 2
    assert finished.index("urgent") < finished.index("young")


def test_tenants_share_the_places():
    """One place: what each tenant has been served stays level, though one asks for much more."""
    sched = Scheduler(BlockPool(60), block_size=BLOCK_SIZE, max_seqs=1, max_batch_tokens=32)
    for n in range(12):
        sched.add(sequence(f"crowd {n}", 6, max_tokens=4, tenant="crowd"))
    for n in range(4):
        sched.add(sequence(f"guest {n}", 6, max_tokens=4, tenant="guest"))
    finished: list[str] = []
    while sched.has_work:
        finished += [seq.request.tenant for seq in run(sched)]
    assert finished[:8].count("guest") == 4


def test_a_prefill_limit_lets_decoding_through_and_the_prompt_on():
    sched = scheduler(blocks=40, budget=32)
    decoding = sequence("decoding", 2, max_tokens=50)
    sched.add(decoding)
    run(sched)
    sched.add(sequence("long", 40, max_tokens=2, first=100))
    cost = PrefillCost()
    cost.observe([(0, 10)], ms=10.0)
    sizes = []
    for _ in range(4):
        plan = sched.schedule(PrefillLimit(cost, ms=9.3))
        sizes.append([chunk.count for chunk in plan.chunks])
        for chunk in plan.chunks:
            if chunk.samples:
                chunk.sequence.append(7)
            sched.commit(chunk)
    assert sizes == [[1, 9]] * 4


def test_a_prefill_limit_holds_for_prompts_to_embed_and_to_score() -> None:
    """Also for the last token of one to embed, which never decodes, and within what may be scored:
    that much is taken of the limit and no more."""
    sched = Scheduler(
        BlockPool(60), block_size=4, max_seqs=MAX_SEQS, max_batch_tokens=32, max_scored_tokens=3
    )
    decoding = sequence("decoding", 2, max_tokens=50)
    sched.add(decoding)
    run(sched)
    embedded = GenerationRequest(
        id="embedded",
        prompt=tuple(range(100, 113)),
        params=SamplingParams(max_tokens=0),
        pooling="last",
    )
    scored = GenerationRequest(
        id="scored",
        prompt=tuple(range(200, 209)),
        params=SamplingParams(max_tokens=1, prompt_logprobs=0),
    )
    for request in (embedded, scored):
        sched.add(Sequence(request, NoText(), arrived_s=0.0))
    cost = PrefillCost()
    cost.observe([(0, 10)], ms=10.0)
    sizes = []
    while len(sched.running) > 1 or sched.waiting:
        plan = sched.schedule(PrefillLimit(cost, ms=9.3))
        sizes.append({chunk.sequence.id: chunk.count for chunk in plan.chunks})
        assert sched.decoding == [decoding] or sched.decoding[-1].id == "scored"
        for chunk in plan.chunks:
            seq = chunk.sequence
            seq.prompt_logprobs += [TokenLogprob(1, -1.0, ())] * len(chunk.scored)
            if chunk.samples:
                seq.append(7)
            sched.commit(chunk)
            if seq is not decoding and seq.computed + chunk.samples == len(seq.tokens):
                sched.finish(seq)
    assert sizes == [
        {"decoding": 1, "embedded": 9},
        {"decoding": 1, "embedded": 4, "scored": 3},
        {"decoding": 1, "scored": 3},
        {"decoding": 1, "scored": 3},
    ]
