"""A standby's life after the fork: warm up, wait for an assignment, become its replica.

Runs in the child, forked by the fork server; never returns. While it waits it blocks in one read.
As a replica its main thread runs an event loop (uvloop). The end of the control socket means that
the supervisor is gone and ends the process in either phase; the kernel's parent-death signal does
the same where the process is busy with something else.
"""

import asyncio
import gc
import os
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from typing import NoReturn

import uvloop

from glowplug.errors import CorruptSnapshot, GlowplugError, NotFound
from glowplug.stages import Stopwatch
from runtime.pod import child_wire
from runtime.pod.child_wire import (
    Alive,
    Check,
    Drain,
    Expect,
    Failed,
    Forked,
    Measured,
    Serving,
    Sleep,
    Slept,
    StandbyReady,
    Take,
)
from runtime.pod.process import die_with_parent, name_process, prefer_in_oom
from runtime.pod.program import Program, Start

_ADOPTION_S = 10.0


def run(
    program: Program,
    *,
    supervisor_pid: int,
    began_s: float,
    control: socket.socket,
    output: int,
    hurry: bool = False,
) -> NoReturn:
    """Be a standby, then a replica. `control` and `output` are this process's own; `began_s` is
    when its fork began; `hurry`: an assignment waits for it, so it does not warm up first."""
    code = 1
    try:
        name_process("glow-standby")
        _enter(supervisor_pid, control, output)
        now_s = time.monotonic()
        child_wire.send(control, Forked(pid=os.getpid(), fork_ms=(now_s - began_s) * 1e3))
        program.warm(hurry=hurry)
        gc.enable()
        warm_ms = (time.monotonic() - now_s) * 1e3
        child_wire.send(control, StandbyReady(warm_ms=warm_ms))
        while received := child_wire.receive(control, descriptors=1):
            message, descriptors = received
            if isinstance(message, Check):
                child_wire.send(control, Alive())
            elif isinstance(message, Expect):
                expect(program, message.snapshot)
            elif isinstance(message, Take) and descriptors:
                _become_replica(program, message, socket.socket(fileno=descriptors[0]), control)
                break
            else:
                raise ValueError(f"a standby takes no {message}")
        code = 0
    except GlowplugError as error:
        lost = isinstance(error, NotFound | CorruptSnapshot)
        _report(control, error.message, snapshot_lost=lost)
    except Exception as error:
        traceback.print_exc()  # for the log
        _report(control, f"internal error: {type(error).__name__}: {error}")
    finally:
        # No interpreter shutdown: it would run the fork server's exit handlers, and take time.
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def expect(program: Program, snapshot: str) -> None:
    """Tell the program; whatever goes wrong must not end a process that can still serve."""
    try:
        program.expect(snapshot)
    except GlowplugError as error:
        print(f"expected {snapshot}: {error.message}", file=sys.stderr)  # noqa: T201
    except Exception:
        traceback.print_exc()


def _enter(supervisor_pid: int, control: socket.socket, output: int) -> None:
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # SIGINT stays ignored
    # The process between is about to end; only then is the supervisor the parent to die with.
    deadline_s = time.monotonic() + _ADOPTION_S
    while os.getppid() != supervisor_pid and time.monotonic() < deadline_s:
        if _ended(control):  # the supervisor died meanwhile; nobody adopts us
            os._exit(0)
        time.sleep(0.0002)
    die_with_parent(supervisor_pid)
    with suppress(OSError):
        prefer_in_oom()


def _ended(control: socket.socket) -> bool:
    try:
        return not control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False


def _become_replica(
    program: Program, take: Take, listener: socket.socket, control: socket.socket
) -> None:
    name_process("glow-replica")
    stopwatch = Stopwatch()
    stopwatch.stages["handover"] = (time.monotonic() - take.sent_s) * 1e3

    def ready(*, max_context: int | None = None) -> None:
        stages, now_s = stopwatch.stages, time.monotonic()
        child_wire.send(control, Serving(stages_ms=stages, max_context=max_context, sent_s=now_s))

    def measured(text: str) -> None:
        with suppress(OSError):  # a supervisor too busy to read gets the next one
            child_wire.send(control, Measured(text=text))

    async def serve() -> None:
        drain: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        sleep = asyncio.Event()
        _watch(control, sleep=sleep, drain=drain)
        await program.serve(
            Start(
                assignment=take.assignment,
                listener=listener,
                stopwatch=stopwatch,
                ready=ready,
                sleep=sleep,
                slept=lambda asleep: child_wire.send(control, Slept(asleep=asleep)),
                measured=measured,
                drain=drain,
            )
        )

    # No asyncio.Runner: it would wait for worker threads at the end. The process ends instead.
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(serve())


def _watch(control: socket.socket, *, sleep: asyncio.Event, drain: asyncio.Future[float]) -> None:
    control.setblocking(False)

    def readable() -> None:
        try:
            received = child_wire.receive(control)
        except BlockingIOError:
            return
        except OSError:
            received = None
        if received is None:
            os._exit(0)  # the supervisor is gone
        message, _ = received
        if isinstance(message, Sleep):
            sleep.set()
        elif isinstance(message, Drain) and not drain.done():
            drain.set_result(message.drain_s)

    asyncio.get_running_loop().add_reader(control.fileno(), readable)


def _report(control: socket.socket, message: str, *, snapshot_lost: bool = False) -> None:
    with suppress(OSError):
        child_wire.send(control, Failed(message=message[:4096], snapshot_lost=snapshot_lost))
