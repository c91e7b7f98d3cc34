"""GET /metrics of the front door: who may read it, what it counts, and under which labels."""

import asyncio
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from activator.auth import Identity
from glowplug.contracts import ReplicaState

CALL = "/f/smollm2/v1/chat/completions"


async def page(house: Any) -> dict[tuple[str, ...], float]:
    """(sample, label values by their labels' names…) → value."""
    async with house.client.get(house.url + "/metrics") as response:
        assert response.status == 200
        assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        return {
            (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(await response.text())
            for sample in family.samples
        }


def test_requests_are_counted_by_function_code_and_start_kind(tools: Any) -> None:
    async def main(house: Any) -> None:
        await house.deploy()

        async def answers(connection: Any) -> None:
            await connection.request()
            await connection.answer()

        replica = await house.raw_replica(answers)
        house.endpoints.put(replica.url, ReplicaState.READY)
        for _ in range(2):
            assert (await house.call()).status == 200
        for path in ("/f/nobody/v1/chat/completions", "/f/nobody-else/v1/chat/completions", "/x"):
            async with house.client.post(house.url + path, json={}) as response:
                assert response.status == 404
        for _ in range(2):
            seen = await page(house)  # and is not counted itself
        assert seen["glowplug_requests_total", "2xx", "smollm2", "warm"] == 2
        assert seen["glowplug_requests_total", "4xx", "", "none"] == 3
        assert seen["glowplug_rejections_total", "", "model_not_found"] == 2
        assert seen["glowplug_rejections_total", "", "unknown_url"] == 1
        assert seen["glowplug_queue_wait_seconds_count", "smollm2"] == 2
        assert seen["glowplug_requests_in_flight", "smollm2"] == 0
        assert seen["glowplug_queue_depth", "smollm2"] == 0
        assert sum(n for key, n in seen.items() if key[0] == "glowplug_requests_total") == 5

    tools.run(main)


def test_what_waits_shows_and_what_is_deleted_does_not(tools: Any) -> None:
    async def main(house: Any) -> None:
        await house.deploy()
        call = asyncio.create_task(house.call())
        while (await page(house)).get(("glowplug_queue_depth", "smollm2")) != 1:
            pass  # each look lets the call come nearer
        assert (await page(house))["glowplug_queue_oldest_wait_seconds", "smollm2"] > 0
        async with house.client.delete(house.url + "/v1/functions/smollm2") as response:
            assert response.status == 204
        assert (await call).status == 404
        await asyncio.sleep(0)
        seen = await page(house)
        assert not [key for key in seen if key[0] == "glowplug_queue_depth"]

    tools.run(main)


def test_only_an_admin_key_may_read_it(tools: Any) -> None:
    keys = {"admin-key-0123456": Identity("ops", True), "user-key-01234567": Identity("team")}

    async def main(house: Any) -> None:
        for key, status in (("admin-key-0123456", 200), ("user-key-01234567", 403), (None, 401)):
            headers = {"authorization": f"Bearer {key}"} if key else {}
            async with house.client.get(house.url + "/metrics", headers=headers) as response:
                assert response.status == status
        async with house.client.post(
            house.url + "/metrics", headers={"authorization": "Bearer admin-key-0123456"}
        ) as response:
            assert response.status == 405

    tools.run(main, keys=keys)
