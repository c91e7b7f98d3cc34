"""A function whose replicas do not start, as its callers see it: front door and scaler together,
over real sockets; only the fleet and the clock are the test's."""

import asyncio

import aiohttp

from activator.app import build_app
from tests.integration.activator.conftest import error_of, served
from tests.unit.scaler.conftest import House

PATH = "/f/f/v1/chat/completions"


async def call(client, url):
    response = await client.post(url + PATH, json={"model": "f"})
    await response.read()
    return response


async def next_start(house, count):
    await house.until(lambda: len(house.fleet.assignments) == count)
    await house.until(lambda: house.fleet.live)


async def scenario(house, client, url):
    await house.deploy(start_timeout_s=600)
    waiting = asyncio.create_task(call(client, url))
    for count, wait_s in ((1, 1.0), (2, 2.0)):
        await next_start(house, count)
        await house.die(house.fleet.live[0], "no memory left")
        assert not waiting.done()  # it may work yet
        await house.tick(wait_s)
    await next_start(house, 3)
    await house.die(house.fleet.live[0], "no memory left")

    for answer in (await waiting, await call(client, url), await call(client, url)):
        assert answer.status == 503
        assert int(answer.headers["retry-after"]) > 0
        error = await error_of(answer)
        assert "3 starts in a row failed, the last: no memory left" in error["message"]
    await house.ticks(3)
    assert len(house.fleet.assignments) == 3  # nothing is spent on those who were refused

    await house.tick()  # the wait is over: one call tries one start
    trying = asyncio.create_task(call(client, url))
    await next_start(house, 4)
    assert not trying.done()
    await house.die(house.fleet.live[0], "still no memory")
    error = await error_of(await trying)
    assert "4 starts in a row failed, the last: still no memory" in error["message"]


def test_callers_are_told_the_cause_at_once():
    async def main():
        async with asyncio.timeout(60), House() as house:
            app = build_app(
                registry=house.registry,
                endpoints=house.scaler.endpoints,
                demand=house.scaler.demand,
            )
            async with served(app) as (url, _), aiohttp.ClientSession() as client:
                await scenario(house, client, url)

    asyncio.run(main())
