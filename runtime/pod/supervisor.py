"""The pod's supervisor: the small process at the root of a pod's process tree.

    supervisor ─┬─ fork server
                ├─ standby …
                └─ replica …

Started by a fleet with one end of a stream socket, on which it speaks glowplug/pod_wire.py. It owns
the listening sockets until a child has them, the pool of standbys and every process of the pod, and
imports no torch, so it is up in a moment and hard to break. One event loop in the main thread,
which lives as long as the process: children ask the kernel to die with it.

It ends, with everything it started, when the control stream ends (at once) or at SIGTERM or SIGINT
(after draining). It asks the kernel to be killed when the *thread* that started it ends.
"""

import argparse
import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import get_args

from glowplug.pod_wire import (
    MAX_LINE_BYTES,
    Hello,
    Message,
    ReplicaChanged,
    ReplicaMeasured,
    StandbysChanged,
    encode,
)
from runtime.pod.code_watch import code_folders, fingerprint, library_folders, watch_code
from runtime.pod.commands import Commands, at_once, cores, has_room
from runtime.pod.forks import Forks
from runtime.pod.output import log, open_log
from runtime.pod.prefetch import ReadAhead
from runtime.pod.process import Reaper, adopt_orphans, die_with_parent, name_process
from runtime.pod.replicas import Replicas
from runtime.pod.standbys import Standbys
from snapshot.node_cache import NodeCache
from snapshot.verification import Verification

_MAX_UNREAD_BYTES = 16 * 2**20  # events that the fleet has not taken
_KILL_LIMIT_S = 5.0
_FLUSH_LIMIT_S = 1.0
_DRAIN_MARGIN_S = 10.0  # over the drain limit: the graces before a kill


def main(argv: Sequence[str] | None = None) -> int:
    """Run until the pod ends."""
    arguments = _parse_arguments(argv)
    with suppress(ProcessLookupError):  # then the control stream has ended too
        die_with_parent(os.getppid())
    adopt_orphans()
    name_process("glow-pod")
    open_log(arguments.log_dir)
    asyncio.run(_run(arguments))
    return 0


async def _run(arguments: argparse.Namespace) -> None:
    reaper = Reaper()
    reader, writer = await asyncio.open_connection(
        sock=socket.socket(fileno=arguments.control_fd), limit=MAX_LINE_BYTES
    )

    def send(message: Message) -> None:
        if writer.transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
            log.error("the fleet takes no events; the pod ends")
            writer.transport.abort()
        writer.write(encode(message))

    read_ahead = ReadAhead(NodeCache(arguments.cache))

    def tell(ready: int) -> None:
        send(StandbysChanged(ready=ready, accelerator=forks.accelerator or ""))

    def renewed() -> None:
        standbys.renew()

    forks = Forks(
        reaper,
        program=arguments.program,
        cache=arguments.cache,
        threads=arguments.threads,
        verify=arguments.verify,
        looked=lambda: tell(standbys.ready),
        renewed=renewed,
    )
    standbys = Standbys(
        forks.fork,
        keep=arguments.standbys,
        at_once=at_once(arguments.threads),
        changed=tell,
        has_room=has_room,
    )
    replicas = Replicas(
        standbys,
        host=arguments.host,
        publish=lambda replica: send(ReplicaChanged(replica=replica)),
        measured=lambda replica, text: send(ReplicaMeasured(replica=replica, text=text)),
        proven=forks.expect,  # what was served once is likely to be again
    )

    commands = Commands(
        replicas=replicas, standbys=standbys, forks=forks, read_ahead=read_ahead, send=send
    )
    loop = asyncio.get_running_loop()
    told_to_end = asyncio.Event()
    for signal_ in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_, told_to_end.set)
    log.info("pod %d: started", os.getpid())
    send(Hello(pid=os.getpid()))
    forking = loop.create_task(forks.run())
    standbys.fill()
    look = partial(fingerprint, code_folders(), library_folders())
    beside = [
        loop.create_task(standbys.keep_healthy()),
        loop.create_task(watch_code(forks.renew, look=look)),
    ]
    obeying = loop.create_task(commands.obey(reader))

    ending = loop.create_task(told_to_end.wait())
    await asyncio.wait([forking, obeying, ending], return_when=asyncio.FIRST_COMPLETED)
    if told_to_end.is_set() and not obeying.done():
        log.info("pod %d: told to end; draining", os.getpid())
        standbys.close()
        drained = loop.create_task(replicas.end(drain_s=arguments.drain_s))
        await asyncio.wait(
            {drained, obeying},
            timeout=arguments.drain_s + _DRAIN_MARGIN_S,
            return_when=asyncio.FIRST_COMPLETED,
        )
    if forking.done() and (error := forking.exception()):
        log.error("the pod ends: %s: %s", type(error).__name__, error)
    for task in (forking, *beside):
        task.cancel()
    standbys.close()
    await reaper.kill_all(within_s=_KILL_LIMIT_S)
    writer.close()
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_FLUSH_LIMIT_S):
            await writer.wait_closed()
    log.info("pod %d: ended", os.getpid())


def _parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m runtime.pod.supervisor", description="One pod: where replicas run."
    )
    parser.add_argument(
        "--control-fd", type=int, required=True, help="an inherited, connected stream socket"
    )
    parser.add_argument("--cache", type=Path, required=True, help="the node cache's folder")
    parser.add_argument("--standbys", type=_count, default=1, help="warm processes to keep ready")
    parser.add_argument("--host", default="127.0.0.1", help="address that replicas listen on")
    parser.add_argument("--log-dir", type=Path, help="folder for pod.log; default: stderr")
    parser.add_argument(
        "--threads", type=_positive, default=cores(), help="compute threads of one replica"
    )
    parser.add_argument(
        "--verify",
        choices=get_args(Verification),
        default="never",
        help="how much of a snapshot is checked before it is served",
    )
    parser.add_argument(
        "--drain-s", type=float, default=10.0, help="time for replicas to finish at SIGTERM"
    )
    parser.add_argument(
        "--program",
        default="runtime.pod.replica:ModelProgram",
        help="module:class that children run, for tests",
    )
    return parser.parse_args(argv)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: write a whole number")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r}: write a whole number, 1 or more")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
