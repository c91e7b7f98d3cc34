"""The resource `glowplug_prewarm`."""

from functools import partial
from typing import TYPE_CHECKING

from tf.iface import (
    CreateContext,
    DeleteContext,
    ImportContext,
    PlanContext,
    ReadContext,
    Resource,
    UpdateContext,
    UpgradeContext,
)
from tf.schema import Attribute, Schema
from tf.types import String, Unknown
from tf.utils import Diagnostics

from glowplug.client import Client, Json
from glowplug.errors import Conflict, InvalidRequest, NotFound
from glowplug.schedule import Schedule, parse_schedule
from terraform.provider.reporting import check, reported, warn_taken_over
from terraform.provider.schema import State
from terraform.provider.settings import (
    CRON,
    FLAG,
    SECONDS,
    TEXT,
    WHOLE,
    keep_words,
    matches,
    setting,
    to_spec,
    to_state,
)

if TYPE_CHECKING:
    from terraform.provider.provider import GlowplugProvider

_set = partial(setting, Schedule)

SETTINGS = [
    _set(
        "name",
        TEXT,
        description="a DNS label, of which a function has no two the same",
        replaces=True,
    ),
    _set(
        "cron",
        CRON,
        description='when its replicas are ready, as `"55 7 * * 1-5"`; this or `at`',
    ),
    _set(
        "at",
        TEXT,
        description='when they are ready, once, as `"2028-03-01T08:00"`: local time of the '
        "time zone, or with an offset or `Z` behind it",
    ),
    _set("duration", SECONDS, description="how long they are kept, `60s` to `7d`"),
    _set("timezone", TEXT, description="IANA zone that the times are in"),
    _set("min_replicas", WHOLE, description="how many are ready at least"),
    _set("enabled", FLAG, description="`false` pauses it"),
]
_FUNCTION = Attribute(
    "function",
    String(),
    required=True,
    requires_replace=True,
    description="The function. Write `glowplug_function.NAME.id`, so that the prewarm is made "
    "again where the function is.",
)
_ID = Attribute("id", String(), computed=True, description="`FUNCTION/NAME`, as `import` takes it.")

_GONE = ("function_not_found", "prewarm_not_found")  # what the server says of what is not there
_ANY_CRON, _ANY_TIME = "0 0 * * *", "2100-01-01T00:00"
_STAND_INS = {"name": "unknown", "cron": _ANY_CRON, "at": _ANY_TIME, "duration": 3600}


class PrewarmResource(Resource):
    """Replicas of a function that are ready by a time, by a cron expression or once."""

    def __init__(self, provider: "GlowplugProvider") -> None:
        self._provider = provider

    @classmethod
    def get_name(cls) -> str:
        """Its type, behind `glowplug_`."""
        return "prewarm"

    @classmethod
    def get_schema(cls) -> Schema:
        """What can be set, and what comes out."""
        return Schema(
            version=0,
            attributes=[_FUNCTION, *(each.attribute() for each in SETTINGS), _ID],
            description="A scheduled prewarm: replicas of a function that are ready by a time.",
        )

    def validate(self, diags: Diagnostics, type_name: str, config: State) -> None:
        """Report what the server would refuse, as far as it is known by now."""
        check(diags, SETTINGS, _with_known_times(config), parse_schedule, _STAND_INS)

    def plan(self, ctx: PlanContext, current: State, planned: State) -> State:
        """What is planned, in the words there are where those mean the same."""
        keep_words(SETTINGS, current, planned)
        return planned

    def create(self, ctx: CreateContext, planned: State) -> State | None:
        """Make it, if the function has none of that name."""
        name = _id(planned)
        with reported(ctx.diagnostics, f"The prewarm {name} was not made", SETTINGS):
            with self._provider.client() as client:
                prewarm = _find(client, planned["function"], planned["name"])
                if prewarm is not None:
                    _take_over(prewarm, planned, ctx.diagnostics)
                _put(client, planned)
            return planned | {"id": name}
        return None

    def read(self, ctx: ReadContext, current: State) -> State | None:
        """How it is on the server now; None where it is gone, by itself or with its function."""
        with reported(ctx.diagnostics, f"The prewarm {_id(current)} cannot be read"):
            with self._provider.client() as client:
                prewarm = _find(client, current["function"], current["name"])
            return None if prewarm is None else _read(prewarm, current)
        return current

    def update(self, ctx: UpdateContext, current: State, planned: State) -> State:
        """Put the changed settings, unless somebody else has changed them meanwhile."""
        name = _id(planned)
        with reported(ctx.diagnostics, f"The prewarm {name} was not changed", SETTINGS):
            with self._provider.client() as client:
                prewarm = _find(client, planned["function"], planned["name"])
                if prewarm is not None and not any(
                    matches(SETTINGS, state, prewarm["spec"]) for state in (current, planned)
                ):
                    raise Conflict(
                        "somebody else has changed it since this was planned; plan and apply again"
                    )
                _put(client, planned)
            return planned
        return current

    def delete(self, ctx: DeleteContext, current: State) -> State | None:
        """Delete it; what it holds is let go."""
        with reported(ctx.diagnostics, f"The prewarm {_id(current)} was not deleted"):
            with self._provider.client() as client:
                try:
                    client.delete_prewarm(current["function"], current["name"])
                except NotFound as error:
                    if error.code not in _GONE:
                        raise
            return None
        return current

    def import_(self, ctx: ImportContext, id: str) -> State | None:  # noqa: A002  # the framework's
        """Take over the prewarm FUNCTION/NAME."""
        with reported(ctx.diagnostics, f"The prewarm {id} cannot be imported"):
            function, separator, name = id.partition("/")
            if not (function and separator and name):
                raise InvalidRequest(f"{id!r} names no prewarm; write FUNCTION/NAME")
            with self._provider.client() as client:
                return _read(client.prewarm(function, name), {})
        return None

    def upgrade(self, ctx: UpgradeContext, version: int, old: State) -> State:
        """There is one version of the schema so far."""
        return old


def _with_known_times(config: State) -> State:
    """The configuration with something in place of a `cron` or `at` that is not known yet, so that
    just one of the two is there."""
    cron, at = config["cron"], config["at"]
    if cron is Unknown and at is Unknown:
        cron, at = _ANY_CRON, None
    elif cron is Unknown:
        cron = _ANY_CRON if at is None else None
    elif at is Unknown:
        at = _ANY_TIME if cron is None else None
    return config | {"cron": cron, "at": at}


def _take_over(prewarm: Json, planned: State, diagnostics: Diagnostics) -> None:
    """Say so where the prewarm is what an apply that broke off has left. Raises Conflict where it
    is another one."""
    name = _id(planned)
    if not matches(SETTINGS, planned, prewarm["spec"]):
        raise Conflict(
            f"a prewarm {name} with other settings exists already; manage that one (terraform "
            f"import ADDRESS {name}), delete it, or choose another name",
            param="name",
        )
    warn_taken_over(diagnostics, f"The prewarm {name}")


def _put(client: Client, planned: State) -> None:
    client.put_prewarm(planned["function"], planned["name"], to_spec(SETTINGS, planned))


def _find(client: Client, function: str, name: str) -> Json | None:
    """The prewarm, or None where the server says that it, or its function, is not there."""
    try:
        return client.prewarm(function, name)
    except NotFound as error:
        if error.code not in _GONE:
            raise
        return None


def _read(prewarm: Json, before: State) -> State:
    state = to_state(SETTINGS, prewarm["spec"], before)
    state["function"] = prewarm["function"]
    return state | {"id": _id(state)}


def _id(state: State) -> str:
    return f"{state['function']}/{state['name']}"
