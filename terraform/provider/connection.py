"""How the provider reaches a server: its settings, from the configuration or the environment."""

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glowplug.client import CONTROL_TIMEOUT_S, DEFAULT_ENDPOINT, Client
from glowplug.errors import InvalidRequest
from glowplug.fields import parse_duration

MAX_TIMEOUT_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class Connection:
    """A server and how to talk to it."""

    endpoint: str
    api_key: str | None
    timeout_s: float
    ca_file: Path | None
    insecure: bool

    def client(self) -> Client:
        """A new client: one must not be shared between the threads that Terraform's calls run in.

        Raises:
            InvalidRequest: the endpoint is no URL, or the CA file cannot be read.
        """
        return Client(
            self.endpoint,
            api_key=self.api_key,
            timeout_s=self.timeout_s,
            tls=self._tls() if self.endpoint.startswith("https:") else None,
        )

    def _tls(self) -> ssl.SSLContext | None:
        if self.insecure:
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            return context
        if self.ca_file is None:
            return None
        try:
            return ssl.create_default_context(cafile=str(self.ca_file))
        except (OSError, ssl.SSLError) as error:
            raise InvalidRequest(
                f"the file {self.ca_file} has no certificates that can be read ({error})",
                param="ca_file",
            ) from None


def connection_of(config: dict[str, Any]) -> Connection:
    """The connection that a configuration, whose values are known, and the environment ask for.

    Raises:
        InvalidRequest: with `param` naming the attribute.
    """
    endpoint = config.get("endpoint") or os.environ.get("GLOWPLUG_ENDPOINT") or DEFAULT_ENDPOINT
    if not endpoint.startswith(("http://", "https://")):
        raise InvalidRequest(
            f"{endpoint!r} must start with http:// or https://, as {DEFAULT_ENDPOINT}",
            param="endpoint",
        )
    ca_file, insecure = config.get("ca_file"), bool(config.get("insecure"))
    if ca_file and insecure:
        raise InvalidRequest(
            "insecure checks no certificate, so ca_file says nothing; drop one of them",
            param="insecure",
        )
    return Connection(
        endpoint=endpoint,
        api_key=config.get("api_key") or os.environ.get("GLOWPLUG_API_KEY") or None,
        timeout_s=_timeout_s(config.get("timeout")),
        ca_file=Path(ca_file).expanduser() if ca_file else None,
        insecure=insecure,
    )


def _timeout_s(text: str | None) -> float:
    if text is None:
        return CONTROL_TIMEOUT_S
    try:
        seconds = float(str(parse_duration(text)))
    except ValueError as error:
        raise InvalidRequest(str(error), param="timeout") from None
    if not 0 < seconds <= MAX_TIMEOUT_S:
        raise InvalidRequest(f"{text!r} is not within 1ms and 1h; write 30s", param="timeout")
    return seconds
