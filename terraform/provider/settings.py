"""Settings: how attributes of a resource stand for the fields of a spec, in both directions.

An attribute that is not set is None in the state and means the spec's default, so that taking one
out of a configuration gives its default back. Durations and sizes keep the text they were written
as ("5m", "64MiB") while they mean what the server has.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from tf.schema import Attribute
from tf.types import Bool, Map, Number, String, TfType, Unknown

from glowplug.fields import parse_bytes, parse_duration
from terraform.provider.schema import SingleBlock, State

_SIZES = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10}


@dataclass(frozen=True)
class Kind:
    """A kind of value: its type in Terraform and what its text means."""

    type: TfType
    parse: Callable[[Any], Any] = lambda value: value
    show: Callable[[Any], Any] = lambda value: value
    note: str = ""  # for the documentation


def show_seconds(seconds: float) -> str:
    """As a user would write it: 90 → "90s", 0.25 → "0.25s"."""
    exact = int(seconds) if seconds == int(seconds) else seconds
    return f"{Decimal(repr(exact)):f}s"


def show_bytes(count: int) -> str:
    """In the largest unit that says it exactly: 67108864 → "64MiB"."""
    for unit, size in _SIZES.items():
        if count and count % size == 0:
            return f"{count // size}{unit}"
    return str(count)


TEXT = Kind(String())
WHOLE = Kind(Number())
FLAG = Kind(Bool())
TEXTS = Kind(Map(String()))
SECONDS = Kind(String(), parse_duration, show_seconds, "a duration such as `90s` or `1h30m`")
BYTES = Kind(String(), parse_bytes, show_bytes, "a size such as `64MiB`")
CRON = Kind(String(), lambda text: " ".join(text.split()))


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One attribute, `path` in the resource, and the field of the spec that it stands for."""

    path: tuple[str, ...]  # (name,) or (block, name)
    field: tuple[str, ...]
    kind: Kind
    description: str
    default: Any
    required: bool = False
    replaces: bool = False  # a change makes a new resource

    def attribute(self) -> Attribute:
        """Its schema."""
        return Attribute(
            self.path[-1],
            self.kind.type,
            description=self.description,
            required=self.required,
            optional=not self.required,
            requires_replace=self.replaces,
        )

    def means(self, value: Any, field: Any) -> bool:
        """Whether this value in a state means what the spec has in its field."""
        if value is Unknown:
            return False
        if value is None:
            return bool(field == self.default)
        try:
            return bool(self.kind.parse(value) == field)
        except ValueError:
            return False


def setting(
    spec: type[BaseModel],
    path: str,
    kind: Kind,
    *,
    field: str | None = None,
    description: str | None = None,
    replaces: bool = False,
) -> Setting:
    """A setting whose default and, unless given, description are those of the spec's field.

    `path` is "name" or "block.name"; `field` is dotted and the path's name where left out.
    """
    steps = tuple((field or path.rpartition(".")[2]).split("."))
    info = spec.model_fields[steps[0]]
    default = info.default
    if len(steps) > 1:
        info = type(default).model_fields[steps[1]]
        default = getattr(default, steps[1])
    text = description or info.description
    if text is None:
        raise ValueError(f"{path}: the field has no description; give one")
    return Setting(
        path=tuple(path.split(".")),
        field=steps,
        kind=kind,
        description=text + _choices(info.annotation),
        default=None if info.is_required() else default,
        required=info.is_required(),
        replaces=replaces,
    )


def _choices(annotation: Any) -> str:
    """Of a Literal's values, as ": `a`, `b` or `c`"."""
    if get_origin(annotation) is not Literal:
        return ""
    *others, last = (f"`{value}`" for value in get_args(annotation))
    return f": {', '.join(others)} or {last}"


def blocks(settings: Iterable[Setting], descriptions: Mapping[str, str]) -> list[SingleBlock]:
    """The blocks that settings are in; one with a required setting is required."""
    inside: dict[str, list[Setting]] = {}
    for each in settings:
        if len(each.path) == 2:
            inside.setdefault(each.path[0], []).append(each)
    return [
        SingleBlock(
            name,
            [each.attribute() for each in within],
            descriptions[name],
            required=any(each.required for each in within),
        )
        for name, within in inside.items()
    ]


def value_at(data: Mapping[str, Any], path: Sequence[str]) -> Any:
    """What lies there: None where a step is missing, Unknown where one is unknown."""
    value: Any = data
    for step in path:
        if value is None or value is Unknown:
            return value
        value = value.get(step)
    return value


def put_at(data: State, path: Sequence[str], value: Any) -> None:
    """Put it there, making the dicts on the way."""
    for step in path[:-1]:
        if data.get(step) is None:
            data[step] = {}
        data = data[step]
    data[path[-1]] = value


def to_spec(settings: Iterable[Setting], state: Mapping[str, Any]) -> State:
    """The spec's JSON that a state asks for; what is not set or not known is left out."""
    spec: State = {}
    for each in settings:
        value = value_at(state, each.path)
        if value is not None and value is not Unknown:
            put_at(spec, each.field, value)
    return spec


def to_state(
    settings: Sequence[Setting], spec: Mapping[str, Any], prior: Mapping[str, Any]
) -> State:
    """The state that the server's spec stands for, in the words of the state before where they
    still mean it."""
    state: State = {}
    for each in settings:
        before, field = value_at(prior, each.path), value_at(spec, each.field)
        if each.means(before, field):
            value = before
        else:
            value = None if field is None else each.kind.show(field)
        put_at(state, each.path, value)
    for name in {each.path[0] for each in settings if len(each.path) == 2}:
        if prior.get(name) is None and all(value is None for value in state[name].values()):
            state[name] = None
    return state


def matches(settings: Iterable[Setting], state: Mapping[str, Any], spec: Mapping[str, Any]) -> bool:
    """Whether a state means just what the server's spec says."""
    return all(
        each.means(value_at(state, each.path), value_at(spec, each.field)) for each in settings
    )


def keep_words(settings: Iterable[Setting], prior: State, planned: State) -> bool:
    """Put the prior state's words in place of planned ones that mean the same ("300s", "5m").

    Returns whether anything is planned that means something else.
    """
    changes = False
    for each in settings:
        before, after = value_at(prior, each.path), value_at(planned, each.path)
        if before == after:
            continue
        if before is None or after is None or after is Unknown:
            changes = True
        elif each.means(after, each.kind.parse(before)):
            put_at(planned, each.path, before)
        else:
            changes = True
    return changes
