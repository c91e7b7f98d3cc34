"""The prewarms of a function over HTTP: a sub-resource that changes one and no other."""

import asyncio
import io
from typing import Any

from activator.auth import Identity
from glowplug.contracts import PrewarmRun

MORNING = {"cron": "0 8 * * 1-5", "duration": "2h", "timezone": "Europe/Berlin"}
URL = "/v1/functions/smollm2/prewarms"


async def ask(house: Any, method: str, path: str = "", **options: Any) -> tuple[int, Any]:
    async with house.client.request(method, house.url + URL + path, **options) as response:
        return response.status, await response.json() if response.status != 204 else None


def test_create_replace_read_delete(tools: Any) -> None:
    async def main(house: Any) -> None:
        await house.deploy()
        assert await ask(house, "GET") == (200, {"object": "list", "data": []})
        async with house.client.put(house.url + URL + "/morning", json=MORNING) as response:
            assert response.status == 201
            assert response.headers["location"] == URL + "/morning"
            created = await response.json()
        assert created == {
            "name": "morning",
            "function": "smollm2",
            "spec": {
                "name": "morning",
                "cron": "0 8 * * 1-5",
                "at": None,
                "duration": 7200.0,
                "timezone": "Europe/Berlin",
                "min_replicas": 1,
                "enabled": True,
            },
            "state": "waiting",
            "runs": [],
        }
        status, replaced = await ask(house, "PUT", "/morning", json=MORNING | {"enabled": False})
        assert (status, replaced["state"]) == (200, "paused")
        once = {"at": "2001-01-01T08:00", "duration": "1m", "name": "once"}
        status, past = await ask(house, "PUT", "/once", json=once)
        assert (status, past["state"]) == (201, "over")
        assert (await ask(house, "GET"))[1]["data"] == [replaced, past]
        assert await ask(house, "GET", "/once") == (200, past)
        assert await ask(house, "DELETE", "/morning") == (204, None)
        assert (await ask(house, "GET"))[1]["data"] == [past]
        for method in ("GET", "DELETE"):
            status, body = await ask(house, method, "/morning")
            assert (status, body["error"]["code"]) == (404, "prewarm_not_found")

    tools.run(main)


def test_runs_have_the_times_of_their_zone(tools: Any) -> None:
    start_s = 1_846_303_200.0  # 2028-07-03 08:00 in Berlin

    async def main(house: Any) -> None:
        await house.deploy()
        await ask(house, "PUT", "/morning", json=MORNING)
        status = house.endpoints.status("smollm2")
        run = PrewarmRun(
            name="morning",
            launch_s=start_s - 8.25,
            ready_by_s=start_s,
            until_s=start_s + 7200,
            replicas=2,
            timezone="Europe/Berlin",
            active=True,
        )
        object.__setattr__(status, "prewarms", [run] * 12)
        house.endpoints.status = lambda _: status
        shown = (await ask(house, "GET", "/morning"))[1]
        assert shown["state"] == "active"
        assert shown["runs"][0] == {
            "name": "morning",
            "ready_by": "2028-07-04T08:00:00+02:00",
            "launch": "2028-07-04T07:59:52+02:00",
            "until": "2028-07-04T10:00:00+02:00",
            "replicas": 2,
            "timezone": "Europe/Berlin",
            "active": True,
        }
        async with house.client.get(house.url + "/v1/functions/smollm2") as response:
            assert (await response.json())["prewarms"] == shown["runs"][:10]

    tools.run(main)


def test_what_is_refused(tools: Any) -> None:
    async def main(house: Any) -> None:
        await house.deploy()
        for path, body, param in (
            ("/a", MORNING | {"cron": "0 25 * * *"}, "cron"),
            ("/a", MORNING | {"timezone": "Mars/Olympus"}, "timezone"),
            ("/a", MORNING | {"at": "2028-01-01T08:00"}, None),
            ("/a", MORNING | {"min_replicas": 2}, "min_replicas"),
            ("/a", MORNING | {"name": "b"}, "name"),
            ("/A", MORNING, "name"),
            ("/a", [], None),
        ):
            status, answer = await ask(house, "PUT", path, json=body)
            assert (status, answer["error"]["param"]) == (400, param)
        assert (await ask(house, "PUT", "/a", data=b"{"))[0] == 400
        assert (await ask(house, "PUT", "/a", data=io.BytesIO(b" " * (1 << 21))))[0] == 413
        assert (await ask(house, "POST", "/a", json=MORNING))[0] == 405
        assert house.registry.rows["smollm2"].spec.schedules == []
        async with house.client.put(
            house.url + "/v1/functions/nobody/prewarms/a", json=MORNING
        ) as response:
            assert response.status == 404

    tools.run(main)


def test_two_at_once_both_last(tools: Any) -> None:
    async def main(house: Any) -> None:
        await house.deploy()
        puts = [ask(house, "PUT", f"/p{number}", json=MORNING) for number in range(8)]
        assert [status for status, _ in await asyncio.gather(*puts)] == [201] * 8
        names = [each["name"] for each in (await ask(house, "GET"))[1]["data"]]
        assert sorted(names) == [f"p{number}" for number in range(8)]

    tools.run(main)


def test_an_admin_key_is_needed(tools: Any) -> None:
    keys = {"user-key": Identity("a", False), "admin-key": Identity("b", True)}

    async def main(house: Any) -> None:
        await house.deploy()
        for key, expected in (("user-key", 403), ("admin-key", 201)):
            headers = {"authorization": f"Bearer {key}"}
            assert (await ask(house, "PUT", "/a", json=MORNING, headers=headers))[0] == expected
        for method, path in (("GET", ""), ("GET", "/a"), ("DELETE", "/a")):
            headers = {"authorization": "Bearer user-key"}
            assert (await ask(house, method, path, headers=headers))[0] == 403

    tools.run(main, keys=keys)
