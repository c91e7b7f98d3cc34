"""Sealing in the background: progress, failures, changes of mind, one at a time."""

import asyncio
from dataclasses import replace

from glowplug.contracts import FunctionState
from glowplug.errors import UnsupportedModel


def test_requests_wait_for_the_seal_and_then_get_a_replica(run):
    async def scenario(house):
        house.sealer.hold = asyncio.Event()
        await house.deploy()
        status = house.status()
        assert (status.state, status.sealing_progress) == (FunctionState.SEALING, 0.25)
        await house.report(queued=3, arrived=3)
        await house.ticks(2)
        assert house.fleet.assignments == []
        house.sealer.hold.set()
        await house.settle()
        assert len(house.fleet.assignments) == 1
        assert house.status().sealing_progress is None
        assert len(house.sealer.calls) == 1
        assert house.fleet.prefetched == [house.fleet.assignments[0].snapshot]

    run(scenario)


def test_who_left_during_the_seal_costs_nothing(run):
    async def scenario(house):
        house.sealer.hold = asyncio.Event()
        await house.deploy()
        await house.report(queued=1, arrived=1)
        await house.report(queued=0)
        await house.tick()
        house.sealer.hold.set()
        await house.settle()
        await house.tick()
        assert house.fleet.assignments == []
        assert house.status().desired_reason == "no request waits any more: 1 → 0"

    run(scenario)


def test_a_bad_model_fails_at_once_with_the_reason_and_is_not_tried_again(run):
    async def scenario(house):
        house.sealer.errors = [UnsupportedModel("m.gguf: architecture 'mamba' is not supported")]
        await house.deploy()
        await house.report(queued=1, arrived=1)
        await house.ticks(5)
        status = house.status()
        assert status.state is FunctionState.FAILED
        assert status.reason == "m.gguf: architecture 'mamba' is not supported"
        assert len(house.sealer.calls) == 1
        assert house.fleet.assignments == []

        await house.deploy()  # the file was repaired
        assert house.status().state is not FunctionState.FAILED
        assert len(house.sealer.calls) == 2

    run(scenario)


def test_min_replicas_of_an_unsealable_model_start_nothing(run):
    async def scenario(house):
        house.sealer.errors = [UnsupportedModel("no")]
        await house.deploy(min_replicas=1)
        await house.ticks(3)
        assert house.fleet.assignments == []
        assert house.status().state is FunctionState.FAILED

    run(scenario)


def test_an_unexpected_error_is_tried_again_then_reported(run):
    async def scenario(house):
        house.sealer.errors = [OSError("disk full"), OSError("disk full")]
        await house.deploy()
        await house.until(lambda: house.status().state is FunctionState.ZERO)
        assert len(house.sealer.calls) == 3

        house.sealer.errors = [OSError("disk full")] * 3
        await house.deploy("g")
        await house.until(lambda: house.status("g").state is FunctionState.FAILED)
        assert house.status("g").reason == "sealing ended unexpectedly (OSError: disk full)"

    run(scenario)


def test_a_registry_that_does_not_take_the_result_is_asked_again(run):
    async def scenario(house):
        house.sealer.hold = asyncio.Event()
        await house.deploy()
        house.registry.broken = True
        house.sealer.hold.set()
        await house.settle()
        assert house.status().state is FunctionState.SEALING
        house.registry.broken = False
        await house.until(lambda: house.status().state is FunctionState.ZERO)
        assert len(house.sealer.calls) == 1

    run(scenario)


def test_models_are_sealed_one_at_a_time(run):
    async def scenario(house):
        for name in ("a", "b", "c"):
            await house.deploy(name, model=f"{name}.gguf")
        await house.ticks(3)
        assert house.sealer.most_running == 1
        assert {name for name, _ in house.sealer.calls} == {"a", "b", "c"}

        house.sealer.hold = asyncio.Event()
        await house.deploy("d", model="d.gguf")
        await house.deploy("e", model="e.gguf")
        assert house.status("d").reason == "its model is being sealed"
        assert house.status("e").reason == "its model waits to be sealed"

    run(scenario)


def test_a_changed_or_deleted_function_stops_its_seal(run):
    async def scenario(house):
        house.sealer.hold = asyncio.Event()
        await house.deploy(max_seqs=1)
        await house.deploy(max_seqs=2)
        assert len(house.sealer.calls) == 2
        assert house.sealer.running == 1
        house.sealer.progresses[0](0.9)  # a thread of the first one may still tell
        assert house.status().sealing_progress == 0.25
        await house.registry.delete("f")
        await house.settle()
        assert house.sealer.running == 0

    run(scenario)


def test_a_sealed_model_is_not_sealed_again_while_the_registry_is_unreadable(run):
    async def scenario(house):
        house.sealer.hold = asyncio.Event()
        await house.deploy()
        await house.report(queued=1, arrived=1)
        house.registry.unreadable = True
        house.sealer.hold.set()
        await house.settle()
        await house.ticks(3)
        assert len(house.sealer.calls) == 1
        assert len(house.fleet.assignments) == 1
        house.registry.unreadable = False

    run(scenario)


def test_adapters_are_sealed_after_the_model_and_named_in_the_assignment(run):
    async def scenario(house):
        await house.deploy(adapters={"a": "/one", "b": "/two"}, adapter_cache_bytes=2**21)
        await house.report(queued=1, arrived=1)
        (assignment,) = house.fleet.assignments
        assert assignment.adapters == {"a": "sha256-/one", "b": "sha256-/two"}
        assert assignment.adapter_cache_bytes == 2**21
        assert house.registry.functions["f"].adapters == assignment.adapters

    run(scenario)


def test_a_bad_adapter_fails_the_function_and_its_last_revision_serves_on(run):
    async def scenario(house):
        replica = await house.one_ready(adapters={"a": "/one"})
        house.sealer.adapter_errors = [UnsupportedModel("adapters.b: use_dora: DoRA")]
        await house.deploy(adapters={"a": "/one", "b": "/dora"})
        await house.tick()
        assert house.registry.functions["f"].failure == "adapters.b: use_dora: DoRA"
        assert house.urls() == [replica]

    run(scenario)


def test_changed_contents_under_the_same_name_are_a_new_revision(run):
    async def scenario(house):
        replica = await house.one_ready(adapters={"a": "/one"})
        first = house.scaler.endpoints.replicas("f")[0].revision
        house.registry.functions["f"] = replace(house.registry.functions["f"], snapshot=None)
        await house.deploy(adapters={"a": "/one"})  # nothing has changed
        await house.tick()
        assert house.urls() == [replica]
        assert len(house.fleet.assignments) == 1

        house.sealer.contents = {"/one": "new"}
        house.registry.functions["f"] = replace(house.registry.functions["f"], snapshot=None)
        await house.deploy(adapters={"a": "/one"})
        await house.tick()
        assert house.fleet.assignments[-1].adapters == {"a": "sha256-new"}
        assert house.fleet.assignments[-1].revision != first
        assert house.urls() == [replica]  # until the new one is ready
        await house.ready()
        (new,) = house.urls()
        assert new != replica
        assert house.registry.functions["f"].spec.revision != first

    run(scenario)
