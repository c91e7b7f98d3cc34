"""Handover: one request's way from its place in line to the response headers of a replica."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

from aiohttp import ClientResponse

from activator.clocks import Timeouts, deadline, expire, reschedule
from activator.dispatch import Lane
from activator.exchange import Exchange
from activator.reasons import retry_after_s, why_waiting
from activator.ticket import Target, Ticket
from activator.timing import Laps
from activator.upstream import Broken, Refused, Upstream, UpstreamRequest
from glowplug.errors import ReplicaLost, StartTimeout


@asynccontextmanager
async def first_answer(
    exchange: Exchange,
    lane: Lane,
    ticket: Ticket,
    *,
    upstream: Upstream,
    request: UpstreamRequest,
    timeouts: Timeouts,
) -> AsyncIterator[tuple[Target, ClientResponse]]:
    """Wait for the ticket's turn and send the request, again and again until a replica answers.

    The start clock runs while no ready replica has the request. Within the block the answer's body
    can be read; leaving it closes the connection.

    Raises:
        StartTimeout: the start clock ran out.
        ReplicaLost: a ready replica broke off; whether it had begun to work is not known, so the
            request is not sent again.
        GlowplugError: what the lane ended the wait with.
    """
    ends_s = time.monotonic() + timeouts.start_s
    async with deadline(ends_s, partial(_start_timeout, lane, timeouts)) as clock:
        while True:
            target = await ticket.handed()
            _book_wait(exchange.laps, target)
            exchange.replica = target.replica.id
            with _resting_if_lost(lane, target):
                response = await _attempt(
                    ticket,
                    target,
                    upstream=upstream,
                    request=request,
                    laps=exchange.laps,
                    clock=clock,
                )
            if response is not None:
                break
            lane.put_back(ticket, target)
            exchange.laps.until("retry")
            reschedule(clock, ends_s)
        exchange.laps.until("start" if target.ready_s is None else "upstream")
        lane.answered(ticket, target)
        reschedule(clock, None)
    try:
        with _resting_if_lost(lane, target):
            yield target, response
    finally:
        response.close()


@contextmanager
def _resting_if_lost(lane: Lane, target: Target) -> Iterator[None]:
    """Spare the next request a replica that has just broken off: it is likely dead."""
    try:
        yield
    except ReplicaLost:
        lane.rest(target)
        raise


async def _attempt(
    ticket: Ticket,
    target: Target,
    *,
    upstream: Upstream,
    request: UpstreamRequest,
    laps: Laps,
    clock: asyncio.Timeout,
) -> ClientResponse | None:
    """Send the request to one target. None: it was not processed there."""
    try:
        async with asyncio.timeout(None) as attempt:
            ticket.on_revoked = partial(expire, attempt)
            if target.ready_s is None:
                ticket.on_ready = partial(_ready, laps, clock)
            else:
                reschedule(clock, None)
            return await upstream.send(target.replica.url, request, laps)
    except TimeoutError:
        if attempt.expired():  # the lane took it away from the target
            return None
        raise
    except Refused:
        return None
    except Broken as error:
        if target.ready_s is None:
            return None
        raise ReplicaLost(
            "the replica broke off before it answered; try again",
            code="replica_lost",
            retry_after_s=1,
        ) from error


def _ready(laps: Laps, clock: asyncio.Timeout) -> None:
    laps.until("start")
    reschedule(clock, None)


def _book_wait(laps: Laps, target: Target) -> None:
    laps.until("decision", min(target.replica.assigned_s, target.seen_s))
    laps.until("assign", target.seen_s)
    laps.until("start", target.ready_s)  # None: it still starts, so until now
    if target.ready_s is not None:
        laps.until("queue")


def _start_timeout(lane: Lane, timeouts: Timeouts) -> StartTimeout:
    status = lane.status()
    return StartTimeout(
        f"no replica of {lane.function} took the request within {timeouts.start_s:g} s: "
        f"{why_waiting(status)}; try again, or raise the start timeout",
        code="start_timeout",
        retry_after_s=retry_after_s(status),
    )
