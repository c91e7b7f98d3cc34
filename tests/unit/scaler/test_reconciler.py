"""The reconciler against an in-memory fleet: scaling from zero, to zero, and what survives."""

import asyncio
import logging

import pytest

from glowplug.contracts import FunctionState, ReplicaState
from glowplug.errors import NotFound, Unavailable
from glowplug.spec import FunctionSpec
from scaler.plan import plan


def test_a_deployed_function_is_sealed_and_starts_nothing(run):
    async def scenario(house):
        await house.deploy()
        await house.ticks(3)
        assert house.sealer.calls == [("f", FunctionSpec(name="f", model="m.gguf").revision)]
        assert house.fleet.assignments == []
        assert house.status().state is FunctionState.ZERO
        assert house.status().snapshot is not None
        assert house.status().desired == 0

    run(scenario)


def test_the_first_waiting_request_starts_one_replica_without_a_tick(run):
    async def scenario(house):
        await house.deploy(max_replicas=1)
        await house.report(queued=1, arrived=1)
        (assignment,) = house.fleet.assignments
        assert assignment.function == "f"
        assert assignment.snapshot == house.status().snapshot
        assert house.status().state is FunctionState.STARTING
        assert house.status().desired_reason == "1 request queued, none running: 0 → 1"
        assert house.urls() == [assignment.replica]

        await house.ready()
        assert house.status().state is FunctionState.READY
        assert house.status().last_start_ms == {"restore": 40.0}

    run(scenario)


def test_a_starting_replica_is_never_asked_for_twice(run):
    async def scenario(house):
        house.fleet.hold = asyncio.Event()
        await house.deploy(max_replicas=3)
        for queued in range(1, 12):  # all fit on one replica: its target is 11
            await house.report(queued=queued, arrived=1)
        await house.ticks(5)
        assert len(house.fleet.assignments) == 1
        house.fleet.hold.set()
        await house.settle()
        await house.ticks(5)
        assert len(house.fleet.assignments) == 1

    run(scenario)


def test_two_hundred_requests_at_zero_start_what_they_need_at_once(run):
    async def scenario(house):
        await house.deploy(max_replicas=30)
        await house.report(queued=200, arrived=200)
        assert len(house.fleet.assignments) == 19  # ceil(200 / 11)
        await house.ready()
        await house.report(in_flight=200)
        await house.ticks(3)
        assert len(house.fleet.assignments) == 19

    run(scenario)


def test_a_request_that_left_before_the_round_still_counts(run):
    async def scenario(house):
        await house.deploy()
        house.arrivals["f"] = 1
        await house.report(queued=0)  # the first report is only a baseline
        await house.report(queued=0, arrived=1)  # came and left between two reports
        assert house.fleet.assignments == []
        await house.tick()
        assert len(house.fleet.assignments) == 1
        assert house.status().desired_reason == "a request came and left, none running: 0 → 1"

    run(scenario)


def test_idle_goes_to_zero_after_idle_s_and_comes_back(run, caplog):
    caplog.set_level(logging.INFO)

    async def scenario(house):
        replica = await house.one_ready(idle_s=30)
        await house.report()
        await house.ticks(29)
        assert house.fleet.released == []
        await house.tick()
        assert house.fleet.released == [(replica, 600.0)]
        assert house.urls() == []
        assert house.status().state is FunctionState.ZERO
        assert "idle for 30.0 s (limit 30 s): 1 → 0" in caplog.text

        await house.die(replica, reason=None)
        await house.ticks(3)
        assert len(house.fleet.assignments) == 1
        await house.report(queued=1, arrived=1)
        assert len(house.fleet.assignments) == 2

    run(scenario)


def test_a_call_while_the_last_replica_drains_starts_another_at_once(run):
    async def scenario(house):
        replica = await house.one_ready(idle_s=30)
        await house.report()
        await house.tick(31)
        await house.report(queued=1, arrived=1)
        assert len(house.fleet.assignments) == 2
        assert replica not in house.urls()
        assert {r.id: r.state for r in house.status().replicas}[replica] is ReplicaState.DRAINING

    run(scenario)


def test_hours_of_idleness_do_not_dull_the_edge(run):
    async def scenario(house):
        replica = await house.one_ready(idle_s=30)
        await house.report()
        await house.tick(31)
        await house.die(replica)
        for _ in range(45):
            await house.tick(60)
        await house.report(queued=1, arrived=1)
        assert len(house.fleet.assignments) == 2

    run(scenario)


def test_min_replicas_are_kept_and_given_up(run):
    async def scenario(house):
        await house.deploy(min_replicas=2, max_replicas=2, idle_s=30)
        assert len(house.fleet.assignments) == 2
        await house.ready()
        await house.ticks(90)
        assert house.fleet.released == []
        await house.deploy(min_replicas=0, max_replicas=2, idle_s=30)
        await house.ticks(3)
        assert len(house.fleet.released) == 2
        assert house.status().state is FunctionState.ZERO

    run(scenario)


def test_max_replicas_lowered_releases_the_newest(run):
    async def scenario(house):
        await house.deploy(min_replicas=3, max_replicas=3)
        await house.ready()
        oldest = house.urls()[0]
        await house.deploy(min_replicas=1, max_replicas=1)
        assert house.urls() == [oldest]

    run(scenario)


def test_a_dead_replica_is_replaced_while_the_function_is_in_use(run):
    async def scenario(house):
        replica = await house.one_ready(idle_s=60)
        await house.tick(20)  # it worked for a while
        await house.report()
        await house.die(replica)
        assert len(house.fleet.assignments) == 2
        await house.ready()
        await house.tick(61)
        assert house.urls() == []

    run(scenario)


def test_a_restarted_scaler_takes_over_what_runs(run):
    async def scenario(house):
        await house.deploy(max_replicas=3, min_replicas=2)
        await house.ready()
        await house.scaler.stop()
        before = list(house.fleet.live)

        house.scaler = house.new_scaler()
        await house.scaler.start()
        await house.settle()
        await house.ticks(5)
        assert len(house.fleet.assignments) == 2
        assert house.urls() == before
        assert house.status().state is FunctionState.READY

    run(scenario)


def test_a_restart_with_an_idle_replica_still_ends_it(run):
    async def scenario(house):
        await house.one_ready(idle_s=30)
        await house.report()
        await house.scaler.stop()
        house.scaler = house.new_scaler()
        await house.scaler.start()
        await house.ticks(29)
        assert len(house.urls()) == 1
        await house.ticks(2)
        assert house.urls() == []

    run(scenario)


def test_replicas_of_functions_deleted_meanwhile_are_ended(run):
    async def scenario(house):
        house.fleet.run("orphan", "forgotten", "0123456789")
        house.fleet.break_watch()
        await house.until(lambda: house.fleet.released)
        assert house.fleet.released == [("orphan", 600.0)]

    run(scenario)


def test_delete_drains_and_forgets(run):
    async def scenario(house):
        replica = await house.one_ready(request_timeout_s=90)
        told = []
        house.scaler.endpoints.subscribe(told.append)
        await house.registry.delete("f")
        await house.settle()
        assert house.fleet.released == [(replica, 90.0)]
        assert house.urls() == []
        assert "f" in told
        with pytest.raises(NotFound, match="'f' does not exist"):
            house.status()
        await house.die(replica)
        await house.tick()

    run(scenario)


def test_demand_for_an_unknown_function_is_kept_until_it_is_known(run):
    async def scenario(house):
        await house.report("late", queued=1, arrived=1)
        await house.tick()
        await house.deploy("late")
        assert len(house.fleet.assignments) == 1

    run(scenario)


def test_a_broken_watch_is_followed_anew_and_nothing_is_missed(run):
    async def scenario(house):
        replica = await house.one_ready()
        house.fleet.list_error = OSError("no fleet")
        house.fleet.break_watch()
        await house.settle()
        house.fleet.gone(replica, "lost meanwhile")
        house.fleet.list_error = None
        await house.until(lambda: len(house.fleet.assignments) == 2)
        assert replica not in house.urls()

    run(scenario)


def test_a_release_that_fails_is_sent_again(run):
    async def scenario(house):
        replica = await house.one_ready(idle_s=10)
        await house.report()
        house.fleet.release_error = OSError("busy")
        await house.tick(11)
        assert house.urls() == []
        house.fleet.release_error = None
        await house.tick()
        assert house.fleet.released == [(replica, 600.0)]
        await house.tick()
        assert house.fleet.released == [(replica, 600.0)]

    run(scenario)


def test_a_broken_registry_is_read_again(run):
    async def scenario(house):
        house.registry.unreadable = True
        await house.deploy()
        assert house.urls() == []
        house.registry.unreadable = False
        await house.until(lambda: house.sealer.calls)
        await house.report(queued=1, arrived=1)
        assert len(house.fleet.assignments) == 1

    run(scenario)


def test_a_round_that_fails_does_not_end_the_loop(run, monkeypatch):
    async def scenario(house):
        await house.deploy()
        with monkeypatch.context() as patch:
            patch.setattr("scaler.reconciler.plan", lambda *_, **__: 1 / 0)
            await house.report(queued=1, arrived=1)
            assert house.fleet.assignments == []
        await house.report()
        await house.report(queued=1, arrived=1)
        assert len(house.fleet.assignments) == 1

    run(scenario)


def test_stop_leaves_replicas_alone_unless_asked(run):
    async def scenario(house):
        await house.one_ready()
        await house.scaler.stop()
        assert house.fleet.released == []
        assert len(house.fleet.live) == 1

    run(scenario)

    async def draining(house):
        replica = await house.one_ready()
        await house.scaler.stop(drain_s=5.0)
        assert house.fleet.released == [(replica, 5.0)]

    run(draining)


def test_an_assignment_that_is_refused_is_told_to_go_if_it_appears_late(run):
    async def scenario(house):
        house.fleet.assign_error = Unavailable("no standby in time")
        await house.deploy()
        await house.report(queued=1, arrived=1)
        (late,) = [assignment.replica for assignment in house.fleet.assignments]
        house.fleet.released.clear()
        house.fleet.run(late, "f", house.fleet.assignments[0].revision, ReplicaState.STARTING)
        house.fleet.change(late, ReplicaState.STARTING)
        await house.settle()
        assert house.fleet.released == [(late, 0.0)]
        assert house.urls() == []

    run(scenario)


def test_an_assignment_called_off_is_cancelled_and_not_seen(run):
    async def scenario(house):
        house.fleet.hold = asyncio.Event()
        await house.deploy()
        await house.report(queued=1, arrived=1)
        assert house.urls() == []  # nobody knows its address yet
        assert house.status().replicas == []
        await house.registry.delete("f")
        await house.settle()
        (name,) = [assignment.replica for assignment in house.fleet.assignments]
        assert house.fleet.cancelled == [name]
        assert house.fleet.released == [(name, 0.0)]

    run(scenario)


def test_a_replica_not_yet_confirmed_is_not_missed_in_a_new_list(run):
    async def scenario(house):
        house.fleet.hold = asyncio.Event()
        await house.deploy()
        await house.report(queued=1, arrived=1)
        (followed,) = house.fleet.queues
        house.fleet.break_watch()
        await house.until(lambda: house.fleet.queues and house.fleet.queues != [followed])
        await house.settle()
        assert house.status().reason == "a replica is starting"
        house.fleet.hold.set()
        await house.settle()
        await house.ready()
        assert len(house.urls()) == 1
        assert len(house.fleet.assignments) == 1

    run(scenario)


def test_an_end_told_before_the_assignment_fails_counts_once(run):
    async def scenario(house):
        house.fleet.hold = asyncio.Event()
        await house.deploy()
        await house.report(queued=1, arrived=1)
        (assignment,) = house.fleet.assignments
        house.fleet.run(assignment.replica, "f", assignment.revision, ReplicaState.STARTING)
        house.fleet.gone(assignment.replica, "out of memory")
        await house.settle()
        house.fleet.assign_error = Unavailable("out of memory")
        house.fleet.hold.set()
        await house.tick(1.0)
        assert len(house.fleet.assignments) == 2
        assert house.status().reason == "starting again in 2 s after: out of memory"

    run(scenario)


def test_an_end_told_before_the_assignment_returns_leaves_no_ghost(run):
    async def scenario(house):
        await house.deploy()
        assign = house.fleet.assign

        async def assign_and_die(assignment):
            replica = await assign(assignment)
            house.fleet.gone(replica.id, "died at once")
            await house.settle()
            return replica

        house.fleet.assign = assign_and_die
        await house.report(queued=1, arrived=1)
        await house.settle()
        assert house.urls() == []
        assert "died at once" in house.status().reason

    run(scenario)


def test_old_news_is_passed_over(run):
    async def scenario(house):
        replica = await house.one_ready()
        house.fleet.change(replica, ReplicaState.STARTING)
        await house.settle()
        assert house.status().state is FunctionState.READY
        assert len(house.fleet.assignments) == 1

    run(scenario)


def test_queues_that_fill_while_replicas_run_cost_no_rounds(run, monkeypatch, caplog):
    async def scenario(house):
        await house.one_ready()
        await house.settle()
        with monkeypatch.context() as patch:
            patch.setattr("scaler.reconciler.plan", lambda *_, **__: 1 / 0)
            for _ in range(5):
                await house.report(in_flight=16, queued=1, arrived=1)
                await house.report(in_flight=16)
        assert "a round failed" not in caplog.text

    run(scenario)


def test_idle_times_shorter_than_a_tick_are_learned_from(run):
    async def scenario(house):
        await house.one_ready()
        for _ in range(3):
            house.clock.now_s += 0.2
            await house.report()
            house.clock.now_s += 0.3
            await house.report(in_flight=1, arrived=1)
        (tracked,) = house.scaler.reconciler._state.functions.values()
        pattern = tracked.decision.history.pattern
        assert 2.5 < pattern.returns <= 3  # three, the older ones faded a little
        assert 0.5 < pattern.idle_s < 1.0

    run(scenario)


@pytest.mark.parametrize("requests", [1, 20])
def test_short_requests_one_after_another_cost_no_round_each(run, monkeypatch, requests):
    async def scenario(house):
        await house.one_ready()
        await house.report()
        rounds = []
        reconciler = house.scaler.reconciler
        monkeypatch.setattr(reconciler, "_soon_s", 0.5)
        monkeypatch.setattr(reconciler, "round", rounds.append)
        for _ in range(requests):
            await house.report(in_flight=1, arrived=1)
            await house.report()
        assert rounds == []
        await house.until(lambda: rounds)
        assert rounds == [{"f"}]

    run(scenario)


def test_a_function_deployed_anew_does_not_inherit_demand(run):
    async def scenario(house):
        house.fleet.assign_error = Unavailable("no")
        await house.deploy()
        await house.report(queued=5, arrived=5)
        await house.registry.delete("f")
        await house.settle()
        house.fleet.assignments.clear()
        await house.deploy()
        await house.ticks(3)
        assert house.fleet.assignments == []

    run(scenario)


def test_a_cold_start_waits_for_no_other_function(run, monkeypatch):
    async def scenario(house):
        for name in ("a", "b", "c"):
            await house.deploy(name)
        planned = []

        def watched(*args, specs, **kwargs):
            planned.append(set(specs))
            return plan(*args, specs=specs, **kwargs)

        monkeypatch.setattr("scaler.reconciler.plan", watched)
        await house.report("b", queued=1, arrived=1)
        assert len(house.fleet.assignments) == 1
        assert set().union(*planned) == {"b"}
        planned.clear()
        await house.tick()
        assert {"a", "b", "c"} in planned

    run(scenario)


def test_idle_replicas_are_told_once_to_sleep_and_again_after_the_next_use(run):
    async def scenario(house):
        await house.deploy(sleep_s=5, idle_s=60)
        await house.report(queued=1, arrived=1)
        await house.ready()
        await house.report(in_flight=1)
        await house.ticks(10)
        assert house.fleet.asleep == []  # it works, however long
        await house.report()
        await house.ticks(4)
        assert house.fleet.asleep == []
        await house.ticks(10)
        (replica,) = house.fleet.live
        assert house.fleet.asleep == [replica]
        assert house.status().state is FunctionState.READY
        assert [each.asleep for each in house.status().replicas] == [True]
        await house.report(in_flight=1, arrived=1)
        await house.ticks(1)
        await house.report()
        await house.ticks(10)
        assert house.fleet.asleep == [replica, replica]
        await house.ticks(60)
        assert house.fleet.live == []

    run(scenario)


def test_without_sleep_s_nobody_sleeps(run):
    async def scenario(house):
        await house.deploy(idle_s=60)
        await house.report(queued=1, arrived=1)
        await house.ready()
        await house.report()
        await house.ticks(50)
        assert house.fleet.asleep == []

    run(scenario)
