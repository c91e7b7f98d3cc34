"""A small pod for the LocalFleet tests: a real process that speaks glowplug.pod_wire.

What a replica does depends on its function's name: "silent" is never answered, "refused" ends at
once, "stuck" never becomes ready; every other one becomes ready and has a child process of its own,
which also holds the control stream open, as a careless fork would.
"""

import argparse
import os
import signal
import socket
import sys
from dataclasses import replace

from glowplug.contracts import Replica, ReplicaState, StartKind
from glowplug.pod_wire import (
    Assign,
    Hello,
    Ping,
    Pong,
    Prefetch,
    Release,
    ReplicaChanged,
    SetStandbys,
    StandbysChanged,
    decode,
    encode,
)

parser = argparse.ArgumentParser()
parser.add_argument("--control-fd", type=int, required=True)
parser.add_argument("--mute", action="store_true", help="never say hello")
parser.add_argument("--linger", action="store_true", help="stay when the stream ends")
parser.add_argument("--garbage", action="store_true", help="begin with lines that mean nothing")
parser.add_argument("--chatter", action="store_true", help="print 12 MiB")
parser.add_argument("--flood", action="store_true", help="send a line without end")
parser.add_argument("--hang-up", action="store_true", help="close the stream, go on living")
args = parser.parse_args()

stream = socket.socket(fileno=args.control_fd).makefile("rwb")
replicas: dict[str, Replica] = {}


def send(message):
    stream.write(encode(message))
    stream.flush()


def change(replica, **changes):
    replicas[replica.id] = replace(replica, **changes)
    send(ReplicaChanged(replica=replicas[replica.id]))


def fork_child():
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    return pid


def assign(assignment):
    replica = Replica(
        id=assignment.replica,
        function=assignment.function,
        revision=assignment.revision,
        state=ReplicaState.STARTING,
        url="http://127.0.0.1:1",
        capacity=assignment.max_seqs,
        start_kind=StartKind.SNAPSHOT,
    )
    if assignment.function == "silent":
        return
    if assignment.function == "refused":
        change(replica, state=ReplicaState.GONE, reason="the snapshot is corrupt")
        return
    change(replica, pid=fork_child())
    if assignment.function != "stuck":
        change(replicas[replica.id], state=ReplicaState.READY, stages_ms={"restore": 1.5})


def end(replica):
    os.kill(replica.pid, signal.SIGKILL)
    os.waitpid(replica.pid, 0)


def main():
    if args.mute:
        signal.pause()
    if args.garbage:
        stream.write(b'hello?\n{"kind": "Nonsense"}\n[]\n\xff\n')
    send(Hello(pid=os.getpid()))
    if args.chatter:
        for n in range(3 << 16):
            print(f"{n:063}", file=sys.stderr)
        print("the last line", file=sys.stderr, flush=True)
    if args.flood:
        stream.write(b"x" * (3 << 20))
    if args.hang_up:
        stream.close()
        signal.pause()
    send(StandbysChanged(ready=2, accelerator="cpu"))
    print("the pod is up", file=sys.stderr, flush=True)
    for line in stream:
        match decode(line):
            case Assign(assignment=assignment):
                assign(assignment)
            case Release(replica=name, drain_s=drain_s) if name in replicas:
                change(replicas[name], state=ReplicaState.DRAINING, reason=f"drain {drain_s}")
                end(replicas[name])
                change(replicas[name], state=ReplicaState.GONE)
                del replicas[name]
            case Ping():
                send(Pong())
            case SetStandbys(keep=keep):
                send(StandbysChanged(ready=keep, accelerator="cpu"))
            case Prefetch(snapshot=snapshot):
                print(f"prefetch {snapshot}", file=sys.stderr, flush=True)
    if args.linger:
        signal.pause()


try:
    main()
finally:
    for left in replicas.values():
        if left.pid is not None:
            end(left)
