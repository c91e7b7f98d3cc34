"""GlowplugProvider: what Terraform configures once, and what it offers."""

from typing import Any

from tf.iface import DataSource, Provider, Resource
from tf.schema import Attribute, Schema
from tf.types import Bool, String, Unknown
from tf.utils import Diagnostics

from glowplug.client import Client
from glowplug.errors import InvalidRequest
from terraform.provider.address import SOURCE
from terraform.provider.connection import Connection, connection_of
from terraform.provider.function import FunctionResource
from terraform.provider.function_data import FunctionData, FunctionsData
from terraform.provider.prewarm import PrewarmResource

_SETTINGS = [
    Attribute(
        "endpoint",
        String(),
        optional=True,
        description="The server's URL. Default: the environment's `GLOWPLUG_ENDPOINT`, else "
        "`http://127.0.0.1:8080`",
    ),
    Attribute(
        "api_key",
        String(),
        optional=True,
        sensitive=True,
        description="An admin key. Better in the environment's `GLOWPLUG_API_KEY`: it is in no "
        "file then",
    ),
    Attribute(
        "timeout",
        String(),
        optional=True,
        description="Longest time of one HTTP request, as `30s`, the default",
    ),
    Attribute(
        "ca_file",
        String(),
        optional=True,
        description="PEM file of the authorities that may have signed the server's certificate, in "
        "place of the system's",
    ),
    Attribute(
        "insecure",
        Bool(),
        optional=True,
        description="Do not check the server's certificate. For trying things out only",
    ),
]


class GlowplugProvider(Provider):
    """Lives as long as the process; Terraform calls it from several threads."""

    def __init__(self) -> None:
        self._connection: Connection | None = None

    def client(self) -> Client:
        """A new client of the configured server.

        Raises:
            InvalidRequest: the configuration is not known yet.
        """
        if self._connection is None:
            raise InvalidRequest(
                "the provider's endpoint or api_key depends on what is not known before apply; "
                "apply that first (terraform apply -target=…), or give it as a variable"
            )
        return self._connection.client()

    def get_model_prefix(self) -> str:
        """What the names of all types begin with."""
        return "glowplug_"

    def full_name(self) -> str:
        """The source address."""
        return SOURCE

    def get_provider_schema(self, diags: Diagnostics) -> Schema:
        """What can be configured."""
        return Schema(version=0, attributes=_SETTINGS, description="Where the Glowplug server is.")

    def validate_config(self, diags: Diagnostics, config: dict[str, Any]) -> None:
        """Report what can be said without asking the server."""
        known = {name: None if value is Unknown else value for name, value in config.items()}
        self._connect(diags, known)

    def configure_provider(self, diags: Diagnostics, config: dict[str, Any]) -> None:
        """Take the configuration. Nothing is asked for yet."""
        if any(value is Unknown for value in config.values()):
            self._connection = None
        else:
            self._connection = self._connect(diags, config)

    def get_resources(self) -> list[type[Resource]]:
        """What it manages."""
        return [FunctionResource, PrewarmResource]

    def get_data_sources(self) -> list[type[DataSource]]:
        """What it reads."""
        return [FunctionData, FunctionsData]

    def _connect(self, diags: Diagnostics, config: dict[str, Any]) -> Connection | None:
        try:
            return connection_of(config)
        except InvalidRequest as error:
            summary = f"Invalid {error.param}"
            diags.add_error(summary, error.message, path=[error.param] if error.param else None)
            return None
