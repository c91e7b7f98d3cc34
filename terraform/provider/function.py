"""The resource `glowplug_function`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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
from tf.types import Bool, String, Unknown
from tf.utils import Diagnostics

from glowplug.client import Client, Json
from glowplug.errors import Conflict, InvalidRequest, InvalidSpec, NotFound
from glowplug.fields import parse_duration
from glowplug.spec import parse_spec
from terraform.provider.function_settings import BLOCKS, SETTINGS, STAND_INS
from terraform.provider.reporting import check, reported, warn_taken_over
from terraform.provider.schema import State
from terraform.provider.sealed import FAILED, await_callable, status_of
from terraform.provider.settings import (
    blocks,
    keep_words,
    matches,
    to_spec,
    to_state,
    value_at,
)

if TYPE_CHECKING:
    from terraform.provider.provider import GlowplugProvider

_WAIT_TIMEOUT = "30m"
_WAIT = [
    Attribute(
        "wait",
        Bool(),
        optional=True,
        description="Whether an apply waits until the model is sealed and the function can be "
        "called. A model that cannot be sealed fails the apply then. Default: `true`",
    ),
    Attribute(
        "wait_timeout",
        String(),
        optional=True,
        description=f"How long it waits at most. Default: `{_WAIT_TIMEOUT}`",
    ),
]
_OUTPUTS = [
    Attribute("id", String(), computed=True, description="The function's name."),
    Attribute(
        "revision",
        String(),
        computed=True,
        description="Ten hex digits that name this version of the model and its serving settings.",
    ),
    Attribute(
        "snapshot", String(), computed=True, description="The digest that the model is sealed into."
    ),
    Attribute("invoke_url", String(), computed=True, description="Where it is called."),
    Attribute(
        "openai_base_url",
        String(),
        computed=True,
        description="The `base_url` for OpenAI's clients.",
    ),
    Attribute(
        "status",
        String(),
        computed=True,
        description="`callable`, `sealing` or `failed`. It does not change with the traffic. A "
        "function that has failed is deployed again by the next apply.",
    ),
]


class FunctionResource(Resource):
    """A deployed model and its serving settings."""

    def __init__(self, provider: "GlowplugProvider") -> None:
        self._provider = provider

    @classmethod
    def get_name(cls) -> str:
        """Its type, behind `glowplug_`."""
        return "function"

    @classmethod
    def get_schema(cls) -> Schema:
        """What can be set, and what comes out."""
        top = [each.attribute() for each in SETTINGS if len(each.path) == 1]
        return Schema(
            version=0,
            attributes=[*top, *_WAIT, *_OUTPUTS],
            block_types=blocks(SETTINGS, BLOCKS),
            description="A deployed model and its serving settings.",
        )

    def validate(self, diags: Diagnostics, type_name: str, config: State) -> None:
        """Report what the server would refuse, as far as it is known by now."""
        check(diags, SETTINGS, config, parse_spec, STAND_INS)
        try:
            _wait_s(config)
        except InvalidRequest as error:
            diags.add_error("Invalid wait_timeout", error.message, path=["wait_timeout"])

    def plan(self, ctx: PlanContext, current: State, planned: State) -> State:
        """Say which outputs a change can change."""
        changes = keep_words(SETTINGS, current, planned)
        if changes or current["status"] == FAILED:
            planned["status"] = planned["snapshot"] = Unknown
            revision = _revision(planned)
            # Adapters: their contents may have changed.
            if planned["adapters"] or revision is None or revision != _revision(current):
                planned["revision"] = Unknown
        return planned

    def create(self, ctx: CreateContext, planned: State) -> State | None:
        """Deploy it, if its name is free."""
        state: State | None = None
        name = planned["name"]
        summary = f"The function {name} was not deployed"
        with reported(ctx.diagnostics, summary, SETTINGS), self._provider.client() as client:
            function = _created(client, planned, ctx.diagnostics)
            state = _with_outputs(planned, function)  # this is kept if the wait ends in an error
            return _with_outputs(planned, _waited(client, function, planned))
        return state

    def read(self, ctx: ReadContext, current: State) -> State | None:
        """How it is on the server now; None where it is gone."""
        name = current["name"]
        with reported(ctx.diagnostics, f"The function {name} cannot be read"):
            with self._provider.client() as client:
                function = find(client, name)
            return None if function is None else _read(function, current)
        return current

    def update(self, ctx: UpdateContext, current: State, planned: State) -> State:
        """Deploy the changed settings, unless somebody else has changed them meanwhile."""
        state = current
        name = planned["name"]
        summary = f"The function {name} was not changed"
        with reported(ctx.diagnostics, summary, SETTINGS), self._provider.client() as client:
            function = find(client, name)
            _refuse_foreign(function, current, planned)
            if function is None or planned["status"] is Unknown:
                seen = None if function is None else function["generation"]
                function = client.deploy(to_spec(SETTINGS, planned), generation=seen)
            state = _with_outputs(planned, function)  # this is kept if the wait ends in an error
            return _with_outputs(planned, _waited(client, function, planned))
        return state

    def delete(self, ctx: DeleteContext, current: State) -> State | None:
        """Delete it; the server lets its requests finish."""
        name = current["name"]
        with reported(ctx.diagnostics, f"The function {name} was not deleted"):
            with self._provider.client() as client:
                try:
                    client.delete(name)
                except NotFound as error:
                    if error.code != "function_not_found":
                        raise
            return None
        return current

    def import_(self, ctx: ImportContext, id: str) -> State | None:  # noqa: A002  # the framework's
        """Take over the function of this name."""
        summary = f"The function {id} cannot be imported"
        with reported(ctx.diagnostics, summary), self._provider.client() as client:
            return _read(client.function(id), dict.fromkeys(a.name for a in _WAIT))
        return None

    def upgrade(self, ctx: UpgradeContext, version: int, old: State) -> State:
        """There is one version of the schema so far."""
        return old


def find(client: Client, name: str) -> Json | None:
    """The function, or None where the server says that there is none of that name.

    Raises:
        GlowplugError: anything else, also a 404 of something that is no Glowplug server.
    """
    try:
        return client.function(name)
    except NotFound as error:
        if error.code != "function_not_found":
            raise
        return None


def _created(client: Client, planned: State, diagnostics: Diagnostics) -> Json:
    """Create it. What an apply that broke off has left, the same in every setting, is taken over.

    Raises:
        Conflict: there is another function of that name.
    """
    try:
        return client.create(to_spec(SETTINGS, planned))
    except Conflict:
        name = planned["name"]
        function = find(client, name)
        if function is None or not matches(SETTINGS, planned, function["spec"]):
            raise Conflict(
                f"a function {name} with other settings exists already; manage that one "
                f"(terraform import ADDRESS {name}), delete it, or choose another name",
                param="name",
            ) from None
        warn_taken_over(diagnostics, f"The function {name}")
        if status_of(function) == FAILED:
            return client.deploy(to_spec(SETTINGS, planned))
        return function


def _refuse_foreign(function: Json | None, current: State, planned: State) -> None:
    """Raises Conflict where the server has neither what the plan began with nor what it ends in."""
    if function is None or any(
        matches(SETTINGS, state, function["spec"]) for state in (current, planned)
    ):
        return
    raise Conflict("somebody else has changed it since this was planned; plan and apply again")


def _waited(client: Client, function: Json, planned: State) -> Json:
    if planned["wait"] is False:
        return function
    return await_callable(client, function, limit_s=_wait_s(planned))


def _wait_s(config: Mapping[str, Any]) -> float:
    text = config["wait_timeout"]
    if text is Unknown or text is None:
        text = _WAIT_TIMEOUT
    try:
        seconds = float(str(parse_duration(text)))
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
    if seconds <= 0:
        raise InvalidRequest(f"{text!r} is no time to wait; set wait = false")
    return seconds


def _revision(state: State) -> str | None:
    """None where it cannot be known yet."""
    if any(value_at(state, each.path) is Unknown for each in SETTINGS):
        return None
    try:
        return parse_spec(to_spec(SETTINGS, state)).revision
    except InvalidSpec:  # written by another version
        return None


def _read(function: Json, before: State) -> State:
    state = to_state(SETTINGS, function["spec"], before)
    for each in _WAIT:
        state[each.name] = before[each.name]
    return state | _outputs(function)


def _with_outputs(planned: State, function: Json) -> State:
    """The state after an apply: what was known in the plan stays as it was planned."""
    outputs = _outputs(function)
    return {
        name: outputs[name] if value is Unknown and name in outputs else value
        for name, value in planned.items()
    }


def _outputs(function: Json) -> State:
    return {
        "id": function["name"],
        "revision": function["revision"],
        "snapshot": function["snapshot"],
        "invoke_url": function["invoke_url"],
        "openai_base_url": function["openai_base_url"],
        "status": status_of(function),
    }
