"""The whole scaler on one machine: real registry file, real pod process, real clock."""

import asyncio
import os
import re
import signal
import sys
import time
from pathlib import Path

from glowplug.contracts import DemandReport, FunctionState
from glowplug.spec import FunctionSpec
from scaler.app import Scaler
from scaler.fleets.local import LocalFleet
from scaler.registry import SqliteRegistry

POD = [sys.executable, str(Path(__file__).with_name("scaler_pod_script.py"))]


class Sealer:
    async def check(self, spec):
        pass

    async def seal(self, spec, progress):
        progress(1.0)
        return f"sha256-{spec.revision}"


class Machine:
    """What `glowplug serve` wires, with a stand-in for the activator's reports."""

    def __init__(self, folder):
        self.registry = SqliteRegistry(folder / "registry.db")
        self.fleet = LocalFleet(POD, log_path=folder / "pod.log")
        self.scaler = Scaler(
            registry=self.registry, fleet=self.fleet, sealer=Sealer(), tick_s=0.05, retry_s=0.05
        )
        self.arrivals = 0
        self.changed = asyncio.Event()
        self.scaler.endpoints.subscribe(lambda _: self.changed.set())

    async def __aenter__(self):
        await self.fleet.start()
        await self.scaler.start()
        return self

    async def __aexit__(self, *_):
        await self.scaler.stop()
        await self.fleet.close()
        self.registry.close()

    def report(self, *, in_flight=0, queued=0, arrived=0):
        self.arrivals += arrived
        self.scaler.demand.report(
            DemandReport(
                function="f",
                reporter="activator",
                sequence=self.arrivals,
                in_flight=in_flight,
                queued=queued,
                oldest_wait_s=0.0,
                arrivals=self.arrivals,
                last_active_s=time.monotonic(),
            )
        )

    async def state(self, *states):
        """Wait for one of these states."""
        while self.scaler.endpoints.status("f").state not in states:
            self.changed.clear()
            await self.changed.wait()
        return self.scaler.endpoints.status("f")


def run(tmp_path, body):
    async def main():
        async with asyncio.timeout(30), Machine(tmp_path) as machine:
            await body(machine)

    asyncio.run(main())


SPEC = FunctionSpec(name="f", model="m.gguf", idle_s=0.3, start_timeout_s=20)


def test_zero_to_one_to_zero_and_again(tmp_path):
    async def body(machine):
        await machine.registry.put(SPEC)
        assert machine.scaler.endpoints.status("f").state is FunctionState.SEALING  # known at once
        await machine.state(FunctionState.ZERO)
        for _ in range(2):
            machine.report(queued=1, arrived=1)
            await machine.state(FunctionState.READY)
            machine.report(in_flight=1)
            assert len(machine.scaler.endpoints.replicas("f")) == 1
            machine.report()
            status = await machine.state(FunctionState.ZERO)
            assert re.fullmatch(r"idle for \d\.\d s \(limit 0\.3 s\): 1 → 0", status.desired_reason)

    run(tmp_path, body)


def test_a_killed_pod_is_replaced_for_those_who_wait(tmp_path):
    async def body(machine):
        await machine.registry.put(SPEC)
        machine.report(queued=1, arrived=1)
        await machine.state(FunctionState.READY)
        machine.report(in_flight=1)
        os.kill(machine.fleet._pod.pid, signal.SIGKILL)
        await machine.state(FunctionState.STARTING, FunctionState.ZERO)
        machine.report(queued=1, arrived=1)
        status = await machine.state(FunctionState.READY)
        assert len(status.replicas) == 1

    run(tmp_path, body)


def test_everything_is_known_again_after_a_restart(tmp_path):
    async def first(machine):
        await machine.registry.put(SPEC)
        await machine.state(FunctionState.ZERO)
        machine.report(queued=1, arrived=1)
        await machine.state(FunctionState.READY)

    async def second(machine):
        assert machine.scaler.endpoints.status("f").state is FunctionState.ZERO
        machine.report(queued=1, arrived=1)
        await machine.state(FunctionState.READY)

    run(tmp_path, first)
    run(tmp_path, second)
