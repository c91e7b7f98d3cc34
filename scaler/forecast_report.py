"""How a forecast looks to users: GET /v1/functions/NAME/forecast and `glowplug forecast`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glowplug.spec import FunctionSpec
from scaler.backtest import LEAST_GAIN, Backtest, Cost
from scaler.forecast import Forecast
from scaler.local_time import BIN_S, BINS_PER_DAY, BINS_PER_HOUR


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether the forecast is acted on, and why: one short sentence for people."""

    acts: bool
    reason: str


def verdict_of(spec: FunctionSpec, backtest: Backtest | None, forecast: Forecast | None) -> Verdict:
    """What the function's mode comes to, given what is known of it."""
    mode = spec.predictive
    reason = None
    if mode == "off":
        reason = "predictive is off"
    elif forecast is None or backtest is None or not forecast.bins:
        reason = "no traffic history yet"
    elif not forecast.ready:
        hours = forecast.bins // BINS_PER_HOUR
        reason = f"{hours} h of traffic are known, 24 are needed"
    elif mode == "forecast":
        reason = "predictive is forecast: it is shown, not acted on"
    elif mode == "on":
        return Verdict(acts=True, reason="predictive is on")
    elif len(backtest.past) < BINS_PER_DAY:
        hours = len(backtest.past) // BINS_PER_HOUR
        reason = f"{hours} h have been foretold, 24 are needed for a test"
    else:
        return Verdict(acts=backtest.pays, reason=_comparison(backtest))
    return Verdict(acts=False, reason=reason)


def _comparison(backtest: Backtest) -> str:
    """The backtest in words."""
    days = len(backtest.past) / BINS_PER_DAY
    nothing, forecast = backtest.nothing, backtest.forecast
    costs = (
        f"in {days:.3g} days {forecast.cold_starts} cold starts instead of {nothing.cold_starts} "
        f"for {(forecast.unused_s - nothing.unused_s) / 3600:.1f} h of a replica"
    )
    if backtest.pays:
        return f"it pays: {costs}"
    return f"it does not pay by {LEAST_GAIN:.0%}: {costs}"


def report(
    spec: FunctionSpec,
    verdict: Verdict,
    *,
    forecast: Forecast | None,
    backtest: Backtest | None,
    hours: int,
    now_s: float,
) -> Mapping[str, Any]:
    """The JSON form. Series have one number for each `bin_s` seconds from their `start`."""
    tested = backtest if backtest is not None and backtest.past else None
    return {
        "function": spec.name,
        "predictive": spec.predictive,
        "timezone": spec.timezone,
        "acts": verdict.acts,
        "reason": verdict.reason,
        "now": now_s,
        "bin_s": BIN_S,
        "backtest": tested and _backtest(tested),
        "past": tested and _past(tested),
        "ahead": _ahead(forecast, hours, now_s) if forecast and forecast.ready else None,
    }


def _backtest(tested: Backtest) -> Mapping[str, Any]:
    return {
        "from": tested.past[0].foretold.utc_bin * BIN_S,
        "until": (tested.past[-1].foretold.utc_bin + 1) * BIN_S,
        "cold_start_worth_s": tested.nothing.worth_s,
        "nothing": _cost(tested.nothing),
        "last_value": _cost(tested.last),
        "forecast": _cost(tested.forecast),
        "pays": tested.pays,
    }


def _cost(cost: Cost) -> Mapping[str, Any]:
    return {
        "unused_s": round(cost.unused_s, 1),
        "cold_starts": cost.cold_starts,
        "cost_s": round(cost.total_s, 1),
    }


def _past(tested: Backtest) -> Mapping[str, Any]:
    past = tested.past
    return {
        "start": past[0].foretold.utc_bin * BIN_S,
        "arrivals": [each.arrivals for each in past],
        "peak": [each.peak for each in past],
        "expected_arrivals": [round(each.foretold.expected.arrivals, 3) for each in past],
        "chance": [round(each.foretold.expected.chance, 4) for each in past],
        "replicas": [each.foretold.replicas for each in past],
    }


def _ahead(forecast: Forecast, hours: int, now_s: float) -> Mapping[str, Any]:
    first = max(int(now_s // BIN_S), int(forecast.known_until_s // BIN_S))
    last = max(first, math.ceil(now_s / BIN_S) + hours * BINS_PER_HOUR)
    bins = [forecast.bin(utc_bin) for utc_bin in range(first, last)]
    return {
        "start": first * BIN_S,
        "expected_arrivals": [round(each.expected.arrivals, 3) for each in bins],
        "chance": [round(each.expected.chance, 4) for each in bins],
        "replicas": [each.replicas for each in bins],
    }
