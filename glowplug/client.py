"""Client: talks HTTP to a Glowplug server. The command line, the tests and the benchmarks use it.

Synchronous, one connection pool, not to be shared between threads. Errors that the server reports
are raised as the glowplug.errors class with their HTTP status, so callers catch the same
exceptions as inside the server.
"""

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import httpx

from glowplug import errors
from glowplug.errors import GlowplugError, Unavailable
from glowplug.stages import from_server_timing

if TYPE_CHECKING:
    import ssl

DEFAULT_ENDPOINT = "http://127.0.0.1:8080"
CONTROL_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0

Json = dict[str, Any]
_JSON = {"content-type": "application/json"}


@dataclass
class Answer:
    """A streamed chat completion: iterate over it for the text; the rest fills in on the way.

    Times are milliseconds from just before the request was sent, on the client's clock.
    """

    headers: Mapping[str, str]
    _lines: Iterator[str]
    _start_s: float
    text: str = ""
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    ttft_ms: float | None = None
    total_ms: float | None = None
    stages_ms: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stages_ms = from_server_timing(self.headers.get("server-timing", ""))

    def __iter__(self) -> Iterator[str]:
        """Yield the text piece by piece.

        Raises:
            GlowplugError: the server reported an error inside the stream, or the stream broke off.
        """
        done = False
        for line in self._lines:
            if not line.startswith("data:"):
                continue
            data = line.removeprefix("data:").strip()
            if data == "[DONE]":
                done = True
                break
            yield from self._take(json.loads(data))
        self.total_ms = (time.perf_counter() - self._start_s) * 1e3
        if not done:
            raise errors.ReplicaLost("the answer broke off before its end; try again")

    def _take(self, chunk: Json) -> Iterator[str]:
        if "error" in chunk:
            raise _error_of(chunk, status=chunk["error"].get("status"))
        if usage := chunk.get("usage"):
            self.prompt_tokens = usage["prompt_tokens"]
            self.completion_tokens = usage["completion_tokens"]
        for choice in chunk["choices"]:
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            if piece := choice["delta"].get("content"):
                if self.ttft_ms is None:
                    self.ttft_ms = (time.perf_counter() - self._start_s) * 1e3
                self.text += piece
                yield piece

    @property
    def start_kind(self) -> str:
        """How the request found its replica: warm, snapshot, cache or cold."""
        return self.headers.get("x-start-kind", "")

    @property
    def tokens_per_s(self) -> float | None:
        """Decode speed after the first token, once the answer is complete."""
        if not self.completion_tokens or self.completion_tokens < 2:
            return None
        if self.total_ms is None or self.ttft_ms is None or self.total_ms <= self.ttft_ms:
            return None
        return (self.completion_tokens - 1) / (self.total_ms - self.ttft_ms) * 1e3


class Client:
    """One server, by its endpoint such as http://127.0.0.1:8080."""

    def __init__(
        self,
        endpoint: str = DEFAULT_ENDPOINT,
        *,
        api_key: str | None = None,
        timeout_s: float = CONTROL_TIMEOUT_S,
        tls: "ssl.SSLContext | None" = None,
    ) -> None:
        """`timeout_s` is that of one request of the control API; `tls` says which certificates are
        trusted, by default the system's."""
        self.endpoint = endpoint.rstrip("/")
        if api_key and not api_key.isascii():
            raise errors.InvalidRequest("the API key has characters that are not ASCII; check it")
        try:
            self._http = httpx.Client(
                base_url=self.endpoint,
                headers={"authorization": f"Bearer {api_key}"} if api_key else {},
                timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S)),
                # Without need for it no CA list is read: that takes a while.
                verify=tls or self.endpoint.startswith("https:"),
            )
        except httpx.InvalidURL as error:
            raise errors.InvalidRequest(f"endpoint {endpoint!r} is not a URL: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def functions(self) -> list[Json]:
        """Every function with its state."""
        listing: list[Json] = self._call("GET", "/v1/functions")["data"]
        return listing

    def function(self, name: str) -> Json:
        """One function with its state. Raises NotFound."""
        return self._call("GET", f"/v1/functions/{_segment(name)}")

    def forecast(self, name: str, *, hours: int = 48) -> Json:
        """What is foretold of the function. Raises NotFound."""
        return self._call("GET", f"/v1/functions/{_segment(name)}/forecast?hours={hours:d}")

    def deploy(self, spec: Json, *, generation: int | None = None) -> Json:
        """Create the function, or update the one of that name; with a `generation`, as `function`
        has shown it, only while it has that. Raises InvalidSpec, Conflict."""
        only = "" if generation is None else f"?generation={generation:d}"
        return self._call("PUT", f"/v1/functions/{_segment(spec['name'])}{only}", body=spec)

    def create(self, spec: Json) -> Json:
        """Create the function. Raises Conflict where one of that name exists, InvalidSpec."""
        return self._call("POST", "/v1/functions", body=spec)

    def delete(self, name: str) -> None:
        """Delete the function and end its replicas. Raises NotFound."""
        self._call("DELETE", f"/v1/functions/{_segment(name)}")

    def decisions(self, name: str, *, limit: int = 20) -> Json:
        """Why the function has its replicas: its last events, the newest first, and what is next.

        Raises NotFound.
        """
        return self._call("GET", f"/v1/functions/{_segment(name)}/decisions?limit={limit:d}")

    def prewarms(self, function: str) -> list[Json]:
        """The function's scheduled prewarms with their next runs. Raises NotFound."""
        listing: list[Json] = self._call("GET", _prewarm_path(function))["data"]
        return listing

    def prewarm(self, function: str, name: str) -> Json:
        """One of them. Raises NotFound."""
        return self._call("GET", _prewarm_path(function, name))

    def put_prewarm(self, function: str, name: str, schedule: Json) -> Json:
        """Create the prewarm, or replace the one of that name. Raises InvalidSpec, NotFound."""
        return self._call("PUT", _prewarm_path(function, name), body=schedule)

    def delete_prewarm(self, function: str, name: str) -> None:
        """Delete it; the replicas that it holds are let go. Raises NotFound."""
        self._call("DELETE", _prewarm_path(function, name))

    @contextmanager
    def history(self, name: str, *, since: str | None = None) -> Iterator[Iterator[bytes]]:
        """A function's traffic history as CSV, in pieces: since so long ago, as 7d, or all of it.

        Raises NotFound.
        """
        with (
            self._transport_errors(),
            self._http.stream(
                "GET",
                f"/v1/functions/{_segment(name)}/history",
                params={} if since is None else {"since": since},
            ) as response,
        ):
            if response.is_error:
                response.read()
                raise _response_error(response)
            yield response.iter_bytes()

    def import_history(self, name: str, file: bytes) -> Json:
        """Put the minutes of this CSV file in place of all from its first to its last.

        Raises NotFound, InvalidRequest with the line that is wrong.
        """
        path = f"/v1/functions/{_segment(name)}/history"
        return self._call("PUT", path, content=file, content_type="text/csv")

    @contextmanager
    def chat(
        self, name: str, messages: Sequence[Mapping[str, str]], **params: Any
    ) -> Iterator[Answer]:
        """Call a function, or `function:adapter`; inside the `with` block the answer streams in.

        `params` are further fields of the request, such as max_tokens and temperature. Leaving
        the block early ends the generation.
        """
        body = {
            "model": name,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            **{key: value for key, value in params.items() if value is not None},
        }
        start_s = time.perf_counter()
        with (
            self._transport_errors(),
            self._http.stream(
                "POST",
                f"/f/{_segment(name.partition(':')[0])}/v1/chat/completions",
                content=_encoded(body),
                headers=_JSON,
                timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
            ) as response,
        ):
            if response.status_code != 200:
                response.read()
                raise _response_error(response)
            yield Answer(response.headers, response.iter_lines(), start_s)

    def _call(
        self,
        method: str,
        path: str,
        *,
        body: Json | None = None,
        content: bytes | None = None,
        content_type: str = "application/json",
    ) -> Json:
        with self._transport_errors():
            response = self._http.request(
                method,
                path,
                content=content if body is None else _encoded(body),
                headers={"content-type": content_type},
            )
        if response.is_error:
            raise _response_error(response)
        try:
            answer: Json = response.json() if response.content else {}
        except ValueError:
            raise GlowplugError(
                f"{self.endpoint} does not answer as a Glowplug server does; check the endpoint"
            ) from None
        return answer

    @contextmanager
    def _transport_errors(self) -> Iterator[None]:
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise Unavailable(
                    f"the certificate of {self.endpoint} is not trusted ({error})"
                ) from None
            raise Unavailable(
                f"no Glowplug server answers at {self.endpoint}; start one with `glowplug serve`, "
                "or name another with --endpoint or GLOWPLUG_ENDPOINT"
            ) from None
        except httpx.UnsupportedProtocol:
            raise errors.InvalidRequest(
                f"endpoint {self.endpoint!r} must start with http:// or https://"
            ) from None
        except httpx.TransportError as error:
            raise Unavailable(
                f"the connection to {self.endpoint} broke off ({error or type(error).__name__})"
            ) from None


def _segment(name: str, *, of: str = "function") -> str:
    """A name as a part of a path; the server checks the rest."""
    if re.fullmatch(r"[A-Za-z0-9_-]+", name) is None:
        raise errors.InvalidRequest(
            f"name: {name!r} cannot be a {of}'s name; use lower-case letters, digits and '-'",
            param="name",
        )
    return name


def _prewarm_path(function: str, name: str | None = None) -> str:
    path = f"/v1/functions/{_segment(function)}/prewarms"
    return path if name is None else f"{path}/{_segment(name, of='prewarm')}"


def _encoded(body: Json) -> bytes:
    """The body as JSON. Raises InvalidRequest for what JSON cannot say."""
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise errors.InvalidRequest("the text is not valid UTF-8; convert it first") from None
    except ValueError:
        raise errors.InvalidRequest("a number is not finite; give a finite one") from None


def _response_error(response: httpx.Response) -> GlowplugError:
    """The exception that an error response stands for."""
    try:
        body = response.json()
    except ValueError:
        body = None
    if not isinstance(body, dict) or not isinstance(body.get("error"), dict):
        return GlowplugError(f"the server answered with HTTP status {response.status_code}")
    retry_after = response.headers.get("retry-after", "")
    return _error_of(
        body,
        status=response.status_code,
        retry_after_s=int(retry_after) if retry_after.isdigit() else None,
    )


def _error_of(
    body: Json, *, status: int | None = None, retry_after_s: int | None = None
) -> GlowplugError:
    """The most general of our exceptions with this error's type (and HTTP status, if known)."""
    error = body["error"]
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type)
        and issubclass(kind, GlowplugError)
        and kind.type == error.get("type")
        and status in (None, kind.status)
    ]
    kind = kinds[0] if kinds else GlowplugError
    return kind(
        str(error.get("message")),
        param=error.get("param"),
        code=error.get("code"),
        retry_after_s=retry_after_s,
    )
