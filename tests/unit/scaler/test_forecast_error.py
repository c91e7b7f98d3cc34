"""How far a forecast was off in the last hour, learned at once and bin by bin."""

import asyncio

import pytest
from traffic import MemoryTraffic

from glowplug.contracts import Function
from glowplug.spec import FunctionSpec
from scaler.forecasts import Forecasts
from scaler.minutes import Minute

DAY = 1440
START = 20_000 * DAY  # minutes; some midnight
SPEC = FunctionSpec(name="f", model="m", predictive="on", cold_start_cost_s=300)


class Registry:
    async def list(self):
        return [Function(spec=SPEC, generation=1)]

    def subscribe(self, changed):
        pass


def steady(days, missing=range(0)):
    """Two requests in each minute, but for these minutes."""
    return [
        Minute(minute=minute, arrivals=2, peak=1)
        for minute in range(START, START + days * DAY)
        if minute not in missing
    ]


def error_at(minute, minutes, *, by_bins_from=None):
    """The error at this minute, all learned at once or from that minute on bin by bin."""
    now_s = [60.0 * (by_bins_from or minute)]
    traffic = MemoryTraffic({"f": minutes})
    forecasts = Forecasts(registry=Registry(), reader=traffic, now=lambda: now_s[0])
    asyncio.run(forecasts.update_all())
    while now_s[0] < 60.0 * minute:
        now_s[0] += 300
        asyncio.run(forecasts.update_all())
    return forecasts.error("f")


def test_what_comes_as_foretold():
    assert error_at(START + 3 * DAY, steady(3)) == pytest.approx(0, abs=6)


@pytest.mark.parametrize("by_bins_from", [None, START + 3 * DAY - 30, START + 3 * DAY - 120])
def test_an_hour_that_nobody_came_in(by_bins_from):
    hour = range(START + 3 * DAY - 60, START + 3 * DAY)
    error = error_at(START + 3 * DAY, steady(3, missing=hour), by_bins_from=by_bins_from)
    assert 20 < error < 121  # the forecast follows what it sees, two bins later


def test_bin_by_bin_is_as_at_once():
    hour = range(START + 3 * DAY - 40, START + 3 * DAY)
    minutes = steady(3, missing=hour)
    at_once = error_at(START + 3 * DAY, minutes)
    assert error_at(START + 3 * DAY, minutes, by_bins_from=START + 3 * DAY - 240) == (
        pytest.approx(at_once, rel=1e-9)
    )


def test_nothing_is_known_yet():
    assert error_at(START + 60, steady(1)[:60]) is None
