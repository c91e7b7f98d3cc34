"""What to tell a client whose request waits in vain or is refused: why, and when to try again."""

import math

from activator.queue import QueueFull
from glowplug.contracts import FunctionState, FunctionStatus
from glowplug.errors import GlowplugError, Overloaded, PayloadTooLarge, Unavailable
from glowplug.spec import QueueLimits

FAILED_RETRY_AFTER_S = 30
UNKNOWN_START_S = 5.0  # assumed until a start was measured
MAX_RETRY_AFTER_S = 60  # OpenAI's clients ignore longer ones


def why_waiting(status: FunctionStatus | None) -> str:
    """What a request waits for; None is a function that the endpoints do not know yet."""
    if status is None:
        return "it has just been deployed"
    if status.state is FunctionState.SEALING:
        return f"its model is being sealed ({status.sealing_progress or 0.0:.0%} done)"
    if status.state is FunctionState.READY:
        return "all its replicas are busy"
    if status.reason:
        return status.reason
    if status.state is FunctionState.STARTING:
        return "a replica is starting"
    return "no replica has been started"


def retry_after_s(status: FunctionStatus | None) -> int:
    """When to try again: at once while a replica works, else after about one start."""
    if status is None:
        return math.ceil(UNKNOWN_START_S)
    if status.state is FunctionState.READY:
        return 1
    start_s = sum(status.last_start_ms.values()) / 1e3 or UNKNOWN_START_S
    return min(max(math.ceil(start_s), 1), MAX_RETRY_AFTER_S)


def function_failed(function: str, reason: str | None) -> Unavailable:
    """The function cannot be served until its owner, or the scaler's next try, mends it."""
    return Unavailable(
        f"{function} cannot be served: {reason or 'it has failed'}",
        code="function_failed",
        retry_after_s=FAILED_RETRY_AFTER_S,
    )


def does_not_fit(
    function: str, full: QueueFull, limits: QueueLimits, *, size_bytes: int, after_s: int
) -> Overloaded | PayloadTooLarge:
    """The queue is full; or the request is larger than all of it, and waiting would not help."""
    if size_bytes > limits.max_bytes:
        return PayloadTooLarge(
            f"the request has {size_bytes} bytes, and the queue of {function} takes "
            f"{limits.max_bytes}; send less, or raise the function's queue.max_bytes",
            param="queue.max_bytes",
            code="body_too_large",
        )
    maximum = limits.max_requests if full.limit == "requests" else limits.max_bytes
    return Overloaded(
        f"the queue of {function} is full ({maximum} {full.limit}); try again later, or raise the "
        f"function's queue.max_{full.limit}",
        param=f"queue.max_{full.limit}",
        code="queue_full",
        retry_after_s=after_s,
    )


def again(error: GlowplugError) -> GlowplugError:
    """A fresh copy to raise: each raise of one exception object would lengthen its traceback."""
    return type(error)(
        error.message, param=error.param, code=error.code, retry_after_s=error.retry_after_s
    )
