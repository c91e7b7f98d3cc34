"""The data sources `glowplug_function` and `glowplug_functions`."""

import json
from typing import TYPE_CHECKING

from tf.iface import DataSource, ReadDataContext
from tf.schema import Attribute, Schema
from tf.types import List, Map, String
from tf.utils import Diagnostics

from glowplug.client import Json
from terraform.provider.reporting import reported
from terraform.provider.schema import Object, State
from terraform.provider.sealed import status_of

if TYPE_CHECKING:
    from terraform.provider.provider import GlowplugProvider

_FIELDS = {
    "name": "The function's name.",
    "revision": "Ten hex digits that name this version of the model and its serving settings.",
    "snapshot": "The digest that the model is sealed into.",
    "status": "`callable`, `sealing` or `failed`.",
    "failure": "Why the model cannot be sealed.",
    "invoke_url": "Where it is called.",
    "openai_base_url": "The `base_url` for OpenAI's clients.",
    "spec": "Every setting, as JSON: read it with `jsondecode`.",
}


class FunctionData(DataSource):
    """One function, whoever deployed it."""

    def __init__(self, provider: "GlowplugProvider") -> None:
        self._provider = provider

    @classmethod
    def get_name(cls) -> str:
        """Its type, behind `glowplug_`."""
        return "function"

    @classmethod
    def get_schema(cls) -> Schema:
        """The name, and what comes out."""
        outputs = [
            Attribute(name, String(), computed=True, description=text)
            for name, text in _FIELDS.items()
            if name != "name"
        ]
        return Schema(
            version=0,
            attributes=[
                Attribute("name", String(), required=True, description=_FIELDS["name"]),
                *outputs,
                Attribute(
                    "adapters",
                    Map(String()),
                    computed=True,
                    description="The digests of its LoRA adapters, by name.",
                ),
            ],
            description="A function that is deployed, by Terraform or otherwise.",
        )

    def validate(self, diags: Diagnostics, type_name: str, config: State) -> None:
        """Nothing can be said of a name without asking the server."""

    def read(self, ctx: ReadDataContext, config: State) -> State | None:
        """How it is now."""
        name = config["name"]
        with reported(ctx.diagnostics, f"The function {name} cannot be read"):
            with self._provider.client() as client:
                function = client.function(name)
            return _fields(function) | {"adapters": function["adapters"]}
        return None


class FunctionsData(DataSource):
    """All functions."""

    def __init__(self, provider: "GlowplugProvider") -> None:
        self._provider = provider

    @classmethod
    def get_name(cls) -> str:
        """Its type, behind `glowplug_`."""
        return "functions"

    @classmethod
    def get_schema(cls) -> Schema:
        """What comes out."""
        fields = ", ".join(f"`{name}`" for name in _FIELDS)
        return Schema(
            version=0,
            attributes=[
                Attribute("names", List(String()), computed=True, description="In order."),
                Attribute(
                    "functions",
                    List(Object(dict.fromkeys(_FIELDS, String()))),
                    computed=True,
                    description=f"Each with {fields}, as the data source `glowplug_function` has "
                    "them.",
                ),
            ],
            description="All functions that are deployed, by Terraform or otherwise.",
        )

    def validate(self, diags: Diagnostics, type_name: str, config: State) -> None:
        """There is nothing to set."""

    def read(self, ctx: ReadDataContext, config: State) -> State | None:
        """How they are now."""
        with reported(ctx.diagnostics, "The functions cannot be read"):
            with self._provider.client() as client:
                functions = [_fields(function) for function in client.functions()]
            return {"names": [each["name"] for each in functions], "functions": functions}
        return None


def _fields(function: Json) -> State:
    derived = {"status": status_of(function), "spec": json.dumps(function["spec"], sort_keys=True)}
    return {name: derived.get(name, function.get(name)) for name in _FIELDS}
