"""Foresight: when plan() will want another number of replicas, if nothing comes in between.

plan() itself is run ahead in virtual time: what starts becomes ready, requests stay as they are,
floors begin and end. So it cannot disagree with what will be done. Pure.
"""

import math
from dataclasses import dataclass, replace

from glowplug.explanation import Cause
from glowplug.spec import FunctionSpec
from scaler.basis import cause_of
from scaler.outlook import Outlook, next_edge
from scaler.plan import Counts, Decision, Demand, History, plan
from scaler.rates import Shared

MAX_STEPS = 400  # of some 20 µs each
COARSER = 1 / 16  # steps grow with the distance; what is found is then looked for precisely
HORIZON_S = 7 * 86_400.0
PRECISION_S = 1.0  # the scaler looks that often
_NAME = "f"


@dataclass(frozen=True, kw_only=True)
class Ahead:
    """What is foreseen; `change` is None where nothing changes until `until_s`."""

    now: Decision  # what would be decided now
    until_s: float  # plan's clock; infinite: as far as it was looked
    change: Decision | None = None
    cause: Cause | None = None


def foresee(
    now_s: float,
    *,
    spec: FunctionSpec,
    demand: Demand,
    history: History,
    counts: Counts,
    outlook: Outlook,
    shared: Shared,
) -> Ahead:
    """From the last decision's history on, with the demand of now and no further call."""
    wanted, at_s = history.desired, now_s
    demand = replace(demand, arrivals=0)
    look = _Look(spec, demand, history, counts, outlook, shared)
    now = decision = look.at(now_s)
    if decision.desired != wanted:
        return _change(decision, decision, now_s, spec)
    look = replace(look, demand=replace(demand, load=None))  # from here on history has it
    for _ in range(MAX_STEPS):
        coarse_s = min(COARSER * (at_s - now_s), next_edge(outlook.floors, at_s) - at_s)
        step_s = max(decision.recheck_s, coarse_s, PRECISION_S)
        if at_s + step_s > now_s + HORIZON_S:
            return Ahead(now=now, until_s=math.inf)
        if not counts.failing:
            counts = Counts(ready=decision.desired)  # what was starting is ready
        look = replace(look, history=decision.history, counts=counts)
        decision = look.at(at_s + step_s)
        if decision.desired != wanted:
            return _first(now, look, at_s, at_s + step_s)
        at_s += step_s
    return Ahead(now=now, until_s=at_s)


@dataclass(frozen=True)
class _Look:
    """A plan of one function at a time to come."""

    spec: FunctionSpec
    demand: Demand
    history: History
    counts: Counts
    outlook: Outlook
    shared: Shared

    def at(self, now_s: float) -> Decision:
        return plan(
            now_s,
            {_NAME: self.demand},
            history={_NAME: self.history},
            specs={_NAME: self.spec},
            fleet={_NAME: self.counts},
            outlook={_NAME: self.outlook},
            shared=self.shared,
        )[_NAME]


def _first(now: Decision, look: _Look, from_s: float, until_s: float) -> Ahead:
    """The change lies between the two: by bisection, as precise as the scaler looks."""
    while until_s - from_s > PRECISION_S / 4:
        middle_s = (from_s + until_s) / 2
        if look.at(middle_s).desired == now.desired:
            from_s = middle_s
        else:
            until_s = middle_s
    return _change(now, look.at(until_s), until_s, look.spec)


def _change(now: Decision, decision: Decision, at_s: float, spec: FunctionSpec) -> Ahead:
    basis = decision.basis
    cause = cause_of(basis, spec, decision.desired) if basis else None
    return Ahead(now=now, until_s=at_s, change=decision, cause=cause)
