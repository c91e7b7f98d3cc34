"""What the pod asks of Linux: parent-death signals, reaping, exit statuses in words.

Used by the supervisor, the fork server and their children. Functions only act on the calling
process; nothing here imports torch.
"""

import asyncio
import ctypes
import os
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_CLAIM_LIMIT_S = 30.0


def _prctl(option: int, value: int | bytes) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno))


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies (PR_SET_CHILD_SUBREAPER)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel for SIGKILL when the parent ends (PR_SET_PDEATHSIG).

    The kernel's "parent" is the *thread* that created this process (or, for an adopted one, a
    living thread of the adopter): never start a pod from a thread that ends before the pod should.
    The setting is lost at fork, and fires as well when a process is handed on to another parent.

    Raises:
        ProcessLookupError: the parent is gone already.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the call
        raise ProcessLookupError(f"the parent {parent_pid} is gone")


def name_process(name: str) -> None:
    """Give this thread, and so its process in `ps` and `top`, a name of 15 characters at most."""
    _prctl(_PR_SET_NAME, name.encode()[:15])


def thread_names() -> list[str]:
    """The names of all threads of this process, those of C libraries included."""
    return [
        (task / "comm").read_text().strip() for task in sorted(Path("/proc/self/task").iterdir())
    ]


def prefer_in_oom(score: int = 500) -> None:
    """Let the kernel's out-of-memory killer pick this process before the rest of the pod."""
    Path("/proc/self/oom_score_adj").write_text(str(score))


def describe_exit(status: int) -> str:
    """`exit code 1` or `killed by signal 9`, from a wait status."""
    code = os.waitstatus_to_exitcode(status)
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


class Reaper:
    """Collects the exit of every child of this process, adopted ones included.

    On the event loop of the main thread. It takes all children: use neither `subprocess` nor
    asyncio's own in the same process.
    """

    def __init__(self) -> None:
        self._exits: dict[int, asyncio.Future[int]] = {}
        self._unclaimed: dict[int, int] = {}  # a child can end before its pid is known here
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGCHLD, self._reap)

    def exit_of(self, pid: int) -> asyncio.Future[int]:
        """Resolves to the wait status of this child. Once per pid."""
        exit_ = self._loop.create_future()
        if pid in self._unclaimed:
            exit_.set_result(self._unclaimed.pop(pid))
        else:
            self._exits[pid] = exit_
        return exit_

    async def kill_all(self, *, within_s: float) -> None:
        """Kill every child asked about that lives, and wait for their ends."""
        for pid in self._exits:
            os.kill(pid, signal.SIGKILL)  # not reaped yet, so the pid is its own
        if self._exits:
            await asyncio.wait(self._exits.values(), timeout=within_s)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            exit_ = self._exits.pop(pid, None)
            if exit_ is None:
                self._unclaimed[pid] = status
                # An orphan's is never asked for, and its pid will be another's one day.
                self._loop.call_later(_CLAIM_LIMIT_S, self._unclaimed.pop, pid, None)
            elif not exit_.done():
                exit_.set_result(status)
