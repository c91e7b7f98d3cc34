"""Health checks: standbys that wait are asked whether they still answer.

A process can hang without ending: stopped, stuck in a driver, out of a swap that died. Its waiting
costs nothing until a request is given to it. On the supervisor's event loop; the answers are read
here, and by nobody else, until the pool hands the child out.
"""

import asyncio
from collections.abc import Callable, Iterable

from runtime.pod.child import Child
from runtime.pod.child_wire import Alive, Check, Message

_ANSWER_LIMIT_S = 5.0
_GRACE_S = 1.0  # the supervisor may have been stopped itself: what has come meanwhile is read first


class HealthChecks:
    """Asks, and tells `failed(child, why)` of each that does not answer in time and was not
    `released` meanwhile."""

    def __init__(self, failed: Callable[[Child, str], None]) -> None:
        self._failed = failed
        self._answers: dict[Child, asyncio.Task[Message | None]] = {}  # those not heard yet

    def asked(self, child: Child) -> bool:
        """Whether its answer has not come yet."""
        answer = self._answers.get(child)
        return answer is not None and not answer.done()

    def release(self, child: Child) -> None:
        """It is handed out: whatever it says from now on, also a late answer, is its owner's."""
        answer = self._answers.pop(child, None)
        if answer is not None:
            answer.cancel()

    async def check(self, children: Iterable[Child]) -> None:
        """Ask these; returns when each has answered, failed or been released."""
        for child in children:
            try:
                child.send(Check())
            except OSError as error:  # it is gone, or has not read for long
                self._failed(child, f"cannot be asked whether it lives ({error.strerror})")
            else:
                self._answers[child] = asyncio.ensure_future(child.receive())
        for wait_s in (_ANSWER_LIMIT_S, _GRACE_S):
            if waiting := [answer for answer in self._answers.values() if not answer.done()]:
                await asyncio.wait(waiting, timeout=wait_s)
        answers, self._answers = self._answers, {}
        for child, answer in answers.items():
            if not answer.done():
                answer.cancel()
                self._failed(child, f"did not answer for {_ANSWER_LIMIT_S:g} s")
            elif answer.exception() is not None or not isinstance(answer.result(), Alive):
                self._failed(child, "did not answer as it should")
