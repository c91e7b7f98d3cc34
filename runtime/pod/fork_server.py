"""The fork server: a process with everything imported that turns into standbys by fork.

Started by the supervisor (runtime/pod/forks.py), which asks for a child with one packet and passes
it the child's control socket and output pipe. It stays single-threaded and makes no CUDA call: a
fork copies only the calling thread, so a lock held by any other would stay locked in the child.

A child is forked twice, with the process between ending at once: its parent is then the supervisor
(which adopts orphans), not the fork server. So the supervisor learns of every exit in one way, a
child may live on when the fork server dies, and still dies with the supervisor.
"""

import argparse
import gc
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

from runtime.pod import child_wire, standby
from runtime.pod.child_wire import Expect, Failed, Fork, Imported
from runtime.pod.process import die_with_parent, name_process, thread_names
from runtime.pod.program import Settings, load_program


def main() -> None:
    """Import, then fork on command until the supervisor ends the stream."""
    arguments = _parse_arguments()
    supervisor_pid: int = arguments.supervisor
    name_process("glow-forks")
    die_with_parent(supervisor_pid)
    os.setsid()  # a Ctrl-C in a terminal is for the pod's owner to handle
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    commands = socket.socket(fileno=arguments.control_fd)

    started_s = time.monotonic()
    gc.disable()
    settings = Settings(
        cache=arguments.cache,
        threads=arguments.threads,
        verify=arguments.verify,
        visible_gpus=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )
    program = load_program(arguments.program, settings)
    sys.stdout.flush()
    sys.stderr.flush()
    # What is alive now stays: the collector never touches (and so never copies) it in a child.
    gc.collect()
    gc.freeze()
    child_wire.send(
        commands,
        Imported(
            imports_ms=(time.monotonic() - started_s) * 1e3,
            vocabulary=child_wire.VOCABULARY,
            accelerator=program.accelerator,
        ),
    )

    while received := child_wire.receive(commands, descriptors=2):
        command, descriptors = received
        if isinstance(command, Expect):
            standby.expect(program, command.snapshot)
            gc.freeze()
            continue
        if not isinstance(command, Fork) or len(descriptors) != 2:
            raise ValueError(f"the fork server takes no {command}")
        control, output = socket.socket(fileno=descriptors[0]), descriptors[1]
        try:
            began_s = time.monotonic()
            if _fork():
                commands.close()
                standby.run(
                    program,
                    supervisor_pid=supervisor_pid,
                    began_s=began_s,
                    control=control,
                    output=output,
                    hurry=command.hurry,
                )
        except (OSError, RuntimeError) as error:
            with suppress(OSError):  # the supervisor waits no longer
                child_wire.send(control, Failed(message=f"cannot fork: {error}"))
        finally:
            control.close()
            os.close(output)


def _fork() -> bool:
    """True in the new process, which is the supervisor's child, and False in this one.

    Raises:
        OSError: the kernel refused (no memory, too many processes).
        RuntimeError: this process is not fit to fork.
    """
    threads = thread_names()
    if len(threads) != 1:
        raise RuntimeError(f"the fork server must have one thread, it has {threads}")
    between = os.fork()
    if between:
        _, status = os.waitpid(between, 0)
        if status != 0:
            errno = os.waitstatus_to_exitcode(status)
            raise OSError(errno, os.strerror(abs(errno)))
        return False
    try:
        child = os.fork()
    except OSError as error:
        os._exit(error.errno or 1)
    if child:
        os._exit(0)
    return True


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m runtime.pod.fork_server")
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--supervisor", type=int, required=True, help="its pid")
    parser.add_argument("--program", required=True, help="module:class; see runtime/pod/program.py")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--verify", required=True, help="see snapshot/verification.py")
    return parser.parse_args()


if __name__ == "__main__":
    main()
