"""A heartbeat in virtual time: silence is noticed, late answers and deaf streams are told apart."""

import asyncio

from virtual_time import VirtualTimeLoop

from scaler.fleets.heartbeat import Heartbeat


def silent_after(answers, *, limit_s=20.0):
    """When silence was noticed, of a pod whose nth ping is answered after so many seconds: None
    never, "gone" is a closed stream."""
    pings = iter(answers)

    async def main():
        loop = asyncio.get_running_loop()

        async def ping():
            delay = next(pings, None)
            if delay == "gone":
                raise ConnectionResetError
            if delay == "full":
                await asyncio.Event().wait()
            if delay is not None:
                loop.call_later(delay, heartbeat.heard)

        heartbeat = Heartbeat(ping, every_s=5.0, limit_s=limit_s)
        await heartbeat.until_silent()
        return loop.time()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return round(runner.run(main()), 2)


def test_silence_is_noticed():
    assert silent_after([]) == 5 + 20 + 1


def test_answers_keep_it_alive():
    assert silent_after([0.0, 3.0, 19.5]) == (5 + 0) + (5 + 3) + (5 + 19.5) + 26


def test_what_comes_while_this_process_was_held_up_counts():
    assert silent_after([20.5]) == 5 + 21 + 26


def test_a_stream_that_takes_nothing_is_silent():
    assert silent_after(["full"]) == 26


def test_a_closed_stream_is_noticed_elsewhere_and_bounded_here():
    assert silent_after(["gone"]) == 26
