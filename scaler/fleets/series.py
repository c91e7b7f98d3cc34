"""ReplicaSeries: the metrics of all replicas as one, those that have ended included.

A replica sends its metrics in Prometheus' text format after changes, the last time just before it
ends (runtime/pod/measuring.py). Replicas of one revision are added up; counters and histograms of
one that has ended stay, so that none ever goes backwards while this process lives. Replicas write
the text themselves, so reading it is splitting lines.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from glowplug.contracts import Replica

MAX_ENDED = 512  # revisions whose ended replicas are remembered: those served last
_AVERAGED = frozenset(("glowplug_kv_cache_usage_perc",))


@dataclass(slots=True)
class Family:
    """One metric: its HELP and TYPE lines, and its samples by name and labels."""

    name: str
    head: list[str] = field(default_factory=list)
    kind: str = "untyped"
    samples: dict[str, float] = field(default_factory=dict)
    replicas: dict[str, int] = field(default_factory=dict)  # that were added up in a sample

    def add(self, other: "Family") -> None:
        """Add another one's samples."""
        for key, value in other.samples.items():
            self.samples[key] = self.samples.get(key, 0.0) + value
            self.replicas[key] = self.replicas.get(key, 0) + 1

    def lines(self) -> list[str]:
        """As text."""
        if self.name in _AVERAGED:
            values = {key: value / self.replicas[key] for key, value in self.samples.items()}
        else:
            values = self.samples
        return [*self.head, *(f"{key} {value!r}" for key, value in values.items())]


Families = dict[str, Family]


class ReplicaSeries:
    """Takes each replica's latest metrics; on one event loop."""

    def __init__(self) -> None:
        self._live: dict[str, tuple[tuple[str, str], Families]] = {}
        self._ended: OrderedDict[tuple[str, str], Families] = OrderedDict()

    def take(self, replica: Replica, text: str) -> None:
        """Replaces what this replica has said before."""
        self._live[replica.id] = ((replica.function, replica.revision), parse(text))

    def ended(self, replica: Replica) -> None:
        """What it has counted stays."""
        revision, families = self._live.pop(replica.id, (None, {}))
        if revision is None:
            return
        counted = {name: each for name, each in families.items() if each.kind != "gauge"}
        _merge(self._ended.setdefault(revision, {}), counted)
        self._ended.move_to_end(revision)
        while len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)

    def text(self) -> str:
        """All in Prometheus' text format."""
        merged: Families = {}
        for families in (*self._ended.values(), *(each for _, each in self._live.values())):
            _merge(merged, families)
        return "".join(f"{line}\n" for family in merged.values() for line in family.lines())


def parse(text: str) -> Families:
    """The families of a text that a replica wrote: each one's HELP, TYPE, then its samples."""
    families: Families = {}
    family = Family("")
    for line in text.splitlines():
        if line.startswith("#"):
            _, word, name, rest = line.split(" ", maxsplit=3)
            family = families.setdefault(name, Family(name))
            family.head.append(line)
            if word == "TYPE":
                family.kind = rest
        else:
            key, _, value = line.rpartition(" ")
            family.samples[key] = float(value)
    return families


def _merge(into: Families, families: Mapping[str, Family]) -> None:
    for name, family in families.items():
        if name not in into:
            into[name] = Family(name, family.head, family.kind)
        into[name].add(family)
