"""Every error that may reach a user, with the HTTP status and OpenAI error type it maps to.

    GlowplugError                500 server_error
    ├── InvalidRequest           400 invalid_request_error
    │   ├── InvalidSpec            a FunctionSpec field is wrong
    │   └── ContextLengthExceeded  the prompt does not fit
    ├── Unauthorized             401 authentication_error
    ├── Forbidden                403 permission_error
    ├── NotFound                 404 not_found_error
    ├── MethodNotAllowed         405 invalid_request_error
    ├── BodyTimeout              408 timeout_error
    ├── Conflict                 409 conflict_error
    ├── PayloadTooLarge          413 invalid_request_error
    ├── Overloaded               429 rate_limit_error       (with Retry-After)
    ├── Unavailable              503 service_unavailable    (with Retry-After)
    │   └── ReplicaLost            the replica died while it answered
    ├── StartTimeout             504 timeout_error
    ├── RequestTimeout           504 timeout_error
    └── SnapshotError            422 a model cannot be sealed or restored
        ├── UnsupportedModel
        └── CorruptSnapshot

The message is one sentence for the user: what is wrong and what to do.
"""

from typing import Any, ClassVar


class GlowplugError(Exception):
    """Base of all errors meant for a user.

    `param` names the offending request or spec field; `code` is OpenAI's machine-readable code.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, Any]:
        """OpenAI's error shape."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }

    def headers(self) -> dict[str, str]:
        """Response headers that belong to this error."""
        return {} if self.retry_after_s is None else {"retry-after": str(self.retry_after_s)}


class InvalidRequest(GlowplugError):
    """The request is wrong; `param` names the field."""

    status = 400
    type = "invalid_request_error"


class InvalidSpec(InvalidRequest):
    """A FunctionSpec field is wrong."""


class ContextLengthExceeded(InvalidRequest):
    """The prompt and the asked-for output do not fit the context."""


class Unauthorized(GlowplugError):
    """No API key, or an unknown one."""

    status = 401
    type = "authentication_error"


class Forbidden(GlowplugError):
    """The API key does not allow this."""

    status = 403
    type = "permission_error"


class NotFound(GlowplugError):
    """No such function, route or snapshot."""

    status = 404
    type = "not_found_error"


class MethodNotAllowed(GlowplugError):
    """The route exists, the method does not."""

    status = 405
    type = "invalid_request_error"


class BodyTimeout(GlowplugError):
    """The client was too slow with the request body."""

    status = 408
    type = "timeout_error"


class Conflict(GlowplugError):
    """The thing exists already, or was changed meanwhile."""

    status = 409
    type = "conflict_error"


class PayloadTooLarge(GlowplugError):
    """The request body is over the limit."""

    status = 413
    type = "invalid_request_error"


class Overloaded(GlowplugError):
    """A queue is full."""

    status = 429
    type = "rate_limit_error"


class Unavailable(GlowplugError):
    """No replica can serve this now."""

    status = 503
    type = "service_unavailable"


class ReplicaLost(Unavailable):
    """The replica died while it answered."""


class StartTimeout(GlowplugError):
    """No replica was ready within the start timeout."""

    status = 504
    type = "timeout_error"


class RequestTimeout(GlowplugError):
    """The answer was not complete within the request timeout."""

    status = 504
    type = "timeout_error"


class SnapshotError(GlowplugError):
    """A model cannot be sealed or a snapshot cannot be restored."""

    status = 422
    type = "snapshot_error"


class UnsupportedModel(SnapshotError):
    """The architecture, file type or quantisation is not known."""


class CorruptSnapshot(SnapshotError):
    """A file is truncated, changed or mislabelled."""
