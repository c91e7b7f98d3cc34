"""What the activator sees: notices, readers that fail, order."""

import pytest

from glowplug.errors import NotFound


def test_unknown_functions(run):
    async def scenario(house):
        assert house.urls("nobody") == []
        with pytest.raises(NotFound) as caught:
            house.status("nobody")
        assert caught.value.status == 404

    run(scenario)


def test_subscribers_hear_of_each_change_once(run):
    async def scenario(house):
        await house.deploy()
        told = []
        house.scaler.endpoints.subscribe(told.append)
        await house.tick()
        assert told == []
        await house.report(queued=1, arrived=1)
        assert told
        told.clear()
        await house.ready()
        assert told
        told.clear()
        await house.ticks(5)
        assert told == []

    run(scenario)


def test_a_notice_comes_with_the_replica_already_visible(run):
    async def scenario(house):
        await house.deploy()
        seen = []
        house.scaler.endpoints.subscribe(
            lambda name: seen.append([r.state for r in house.scaler.endpoints.replicas(name)])
        )
        await house.report(queued=1, arrived=1)
        assert ["starting"] in seen
        await house.ready()
        assert seen[-1] == ["ready"]

    run(scenario)


def test_a_subscriber_that_fails_hurts_nobody(run, caplog):
    async def scenario(house):
        told = []
        house.scaler.endpoints.subscribe(lambda _: 1 / 0)
        house.scaler.endpoints.subscribe(told.append)
        await house.one_ready()
        assert told
        assert "a subscriber failed" in caplog.text

    run(scenario)


def test_replicas_are_listed_oldest_first(run):
    async def scenario(house):
        first = await house.one_ready(max_replicas=3)
        await house.tick()
        await house.report(in_flight=12, arrived=11)
        await house.tick()
        await house.ready()
        assert house.urls()[0] == first
        assert len(house.urls()) == 2

    run(scenario)


def test_status_shows_the_demand(run):
    async def scenario(house):
        await house.one_ready()
        await house.report(in_flight=2, queued=1, arrived=2)
        assert (house.status().in_flight, house.status().queued) == (2, 1)

    run(scenario)
