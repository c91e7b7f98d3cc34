"""How an engine's thread ends, whatever its loop does: all that is unfinished is told."""

import logging
from collections.abc import Callable, Iterable

from runtime.engine.request import Delta, FinishReason

log = logging.getLogger(__name__)

Emit = Callable[[list[tuple[str, Delta]]], None]

STEP_FAILED = "the engine failed on this request; the replica's log says why"


def run_to_end(
    loop: Callable[[], None],
    *,
    unfinished: Iterable[str],
    emit: Emit,
    on_crash: Callable[[], None],
) -> None:
    """Run an engine's loop; then what is `unfinished` (request ids) ends with ABORT, or, where the
    loop itself failed, with an error."""
    try:
        loop()
        ending = Delta(finish=FinishReason.ABORT)
    except Exception:
        log.exception("the engine's loop failed")
        ending = Delta(finish=FinishReason.ERROR, error="the engine stopped on a fault of its own")
        on_crash()
    emit([(request_id, ending) for request_id in unfinished])
