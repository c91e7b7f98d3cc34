"""Relay: passes a replica's answer on to the client as it comes, one ASGI message a chunk."""

import aiohttp
from aiohttp import ClientResponse

from activator.exchange import Exchange
from activator.headers import (
    encoded,
    of_start,
    server_timing,
    start_kind,
    to_client,
    waited_for_start,
)
from activator.ticket import Target, Ticket
from glowplug.errors import ReplicaLost


async def relay(
    exchange: Exchange, ticket: Ticket, target: Target, response: ClientResponse
) -> None:
    """Send headers and body on. A slow client slows the replica down: nothing piles up here.

    Raises:
        ReplicaLost: the answer broke off.
    """
    replica = target.replica
    cold = waited_for_start(ticket.entered_s, target)
    exchange.start_kind = start_kind(ticket, target).value
    exchange.start_stages_ms = dict(replica.stages_ms) if cold else {}
    theirs = response.headers.get("server-timing", "")
    await exchange.send(
        {
            "type": "http.response.start",
            "status": response.status,
            "headers": [
                *to_client(response.raw_headers),
                *of_start(ticket, target, laps=exchange.laps),
                *encoded(
                    (
                        "server-timing",
                        server_timing(exchange.laps, target, cold=cold, theirs=theirs),
                    ),
                    ("x-accel-buffering", "no"),
                ),
            ],
        }
    )
    while chunk := await _next_chunk(response):
        await exchange.pass_on({"type": "http.response.body", "body": chunk, "more_body": True})
    await exchange.send({"type": "http.response.body", "body": b""})


async def _next_chunk(response: ClientResponse) -> bytes:
    """What has come since the last one; b"" at the end."""
    try:
        return await response.content.readany()
    except (aiohttp.ClientError, OSError) as error:
        raise ReplicaLost(
            "the replica broke off in the middle of the answer; try again",
            code="replica_lost",
            retry_after_s=1,
        ) from error
