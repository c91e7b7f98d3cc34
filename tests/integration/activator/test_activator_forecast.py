"""GET /v1/functions/NAME/forecast over a real socket."""

from typing import Any

import pytest

from activator.auth import Identity
from activator.control import MAX_HOURS


def test_without_forecasts_the_route_says_so(tools: Any) -> None:
    async def main(house: Any) -> None:
        await house.deploy()
        async with house.client.get(f"{house.url}/v1/functions/smollm2/forecast") as response:
            assert response.status == 404
            assert (await tools.error_of(response))["code"] == "no_forecasts"

    tools.run(main)


@pytest.mark.parametrize("hours", ["0", "-1", str(MAX_HOURS + 1), "1e3", "", "٣", "9" * 5000])
def test_hours_are_checked_first(tools: Any, hours: str) -> None:
    async def main(house: Any) -> None:
        await house.deploy()
        url = f"{house.url}/v1/functions/smollm2/forecast"
        async with house.client.get(url, params={"hours": hours}) as response:
            error = await tools.error_of(response)
        assert (response.status, error["param"]) == (400, "hours")
        assert f"1 to {MAX_HOURS}" in error["message"]
        assert len(error["message"]) < 200

    tools.run(main)


def test_it_answers_what_it_was_given_for_the_function_and_the_hours(tools: Any) -> None:
    asked = []

    async def forecast(function: Any, hours: int) -> dict[str, Any]:
        asked.append((function.spec.name, hours))
        return {"acts": False}

    async def main(house: Any) -> None:
        await house.deploy()
        url = f"{house.url}/v1/functions/smollm2/forecast"
        for query in ("", "?hours=6"):
            async with house.client.get(url + query) as response:
                assert (response.status, await response.json()) == (200, {"acts": False})
        async with house.client.get(f"{house.url}/v1/functions/other/forecast") as response:
            assert response.status == 404
            assert (await tools.error_of(response))["code"] == "function_not_found"

    tools.run(main, forecast=forecast)
    assert asked == [("smollm2", 48), ("smollm2", 6)]


def test_it_needs_an_admin_key(tools: Any) -> None:
    async def main(house: Any) -> None:
        await house.deploy()
        url = f"{house.url}/v1/functions/smollm2/forecast"
        async with house.client.get(url, headers={"authorization": "Bearer k"}) as response:
            assert response.status == 403

    tools.run(main, keys={"k": Identity("tenant", False)})
