"""The clocks' lengths from spec and headers, and the scopes that end a block."""

import asyncio
import time
from typing import Any

import pytest
from starlette.datastructures import Headers

from activator.clocks import (
    ClientGone,
    client_present,
    deadline,
    expire,
    reschedule,
    seconds_of,
    timeouts_of,
)
from glowplug.errors import InvalidRequest, RequestTimeout
from glowplug.spec import FunctionSpec

SPEC = FunctionSpec(name="f", model="m", start_timeout_s=60, request_timeout_s=600)


def late() -> RequestTimeout:
    return RequestTimeout("late")


def test_headers_lower_the_functions_timeouts_and_never_raise_them() -> None:
    assert timeouts_of(SPEC, Headers({})).start_s == 60
    both = timeouts_of(SPEC, Headers({"x-start-timeout": "2.5", "x-request-timeout": "1m30s"}))
    assert (both.start_s, both.request_s) == (2.5, 90)
    raised = timeouts_of(SPEC, Headers({"x-start-timeout": "3600", "x-request-timeout": "1d"}))
    assert (raised.start_s, raised.request_s) == (60, 600)


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "inf", "soon", "1e3", "5 s"])
def test_a_header_that_is_no_positive_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="X-Start-Timeout") as caught:
        seconds_of(Headers({"x-start-timeout": text}), "X-Start-Timeout")
    assert caught.value.param == "X-Start-Timeout"


def test_a_deadline_raises_its_error() -> None:
    async def main() -> None:
        with pytest.raises(RequestTimeout):
            async with deadline(time.monotonic() + 0.01, late):
                await asyncio.sleep(10)

    asyncio.run(main())


def test_a_timeout_from_within_is_not_taken_for_the_deadline() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError, match="from the network"):
            async with deadline(time.monotonic() + 10, late):
                raise TimeoutError("from the network")

    asyncio.run(main())


def test_a_deadline_can_be_lifted_and_a_late_lift_is_harmless() -> None:
    async def main() -> None:
        async with deadline(time.monotonic() + 0.01, late) as scope:
            reschedule(scope, None)
            await asyncio.sleep(0.02)
        with pytest.raises(RequestTimeout):
            async with deadline(None, late) as scope:
                asyncio.get_running_loop().call_soon(expire, scope)
                try:
                    await asyncio.sleep(10)
                finally:
                    reschedule(scope, None)

    asyncio.run(main())


def test_a_client_that_hangs_up_ends_the_block() -> None:
    async def main() -> None:
        gone = asyncio.Event()
        messages = 0

        async def receive() -> dict[str, Any]:
            nonlocal messages
            messages += 1
            if messages == 1:  # an empty part of a body that has been read is no hang-up
                return {"type": "http.request", "body": b"", "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        with pytest.raises(ClientGone):
            async with client_present(receive):
                gone.set()
                await asyncio.sleep(10)
        gone.clear()
        async with client_present(receive):
            pass
        assert len(asyncio.all_tasks()) <= 2
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1  # nobody watches a request that is over

    asyncio.run(main())


def test_the_outer_of_two_that_end_at_once_decides() -> None:
    async def main() -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "http.disconnect"}

        with pytest.raises(ClientGone):
            async with client_present(receive), deadline(time.monotonic(), late):
                await asyncio.sleep(10)

    asyncio.run(main())
