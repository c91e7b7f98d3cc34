"""How many standbys are kept: by what is likely to start soon."""

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.warm_pool import Pool, enough


@pytest.mark.parametrize(
    ("expected", "count"), [(0.0, 0), (0.05, 0), (0.06, 1), (0.3, 1), (0.4, 2), (1.0, 3), (5.0, 9)]
)
def test_enough_for_95_of_100_moments(expected, count):
    """Quantiles of the Poisson distribution, as in a printed table."""
    assert enough(expected) == count


@settings(derandomize=True, deadline=None)
@given(st.floats(0, 60))
def test_enough_is_the_smallest_count_that_is(expected):
    count = enough(expected)

    def up_to(most):
        return sum(
            math.exp(-expected + k * math.log(expected) - math.lgamma(k + 1))
            if expected
            else k == 0
            for k in range(most + 1)
        )

    assert up_to(count) >= 0.95 - 1e-9
    assert count == 0 or up_to(count - 1) < 0.95 + 1e-9


def test_standbys_follow_what_is_likely_and_go_down_slowly(run):
    async def scenario(house):
        names = [f"f{k}" for k in range(8)]
        for name in names:
            await house.deploy(name, idle_s=1)
        for _ in range(30):  # each is called every 12 s
            for name in names:
                await house.report(name, queued=1, arrived=1)
                await house.ready()
                await house.report(name, in_flight=1)
                await house.report(name)
                await house.tick(1.5)
                for replica in house.fleet.live:
                    await house.die(replica, None)
        house.scaler.reconciler.fill_pool()
        await house.settle()
        assert house.fleet.standbys_kept == 4  # the most
        for _ in range(100):  # nobody calls any more
            await house.tick(60.0)
            house.scaler.reconciler.fill_pool()
            await house.settle()
        assert house.fleet.standbys_kept == 1

    run(scenario, pool=Pool(least=1, most=4))


def test_a_prewarm_that_is_near_has_its_standbys(run):
    async def scenario(house):
        await house.deploy(
            "f",
            max_replicas=3,
            schedules=[
                {"name": "m", "at": "2028-01-01T01:00", "duration": "10m", "min_replicas": 3}
            ],
        )
        start_s = datetime(2028, 1, 1, 1, tzinfo=UTC).timestamp()
        house.ahead_s = start_s - 8.0 - 5.0 - house.clock()  # launched in 5 s, 8 s ahead
        await house.tick(0.0)
        house.scaler.reconciler.fill_pool()
        await house.settle()
        assert house.fleet.standbys_kept == 3

    run(scenario, pool=Pool(least=1, most=4))
