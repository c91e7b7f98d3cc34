"""The scaler's metrics: replicas by state, starts by kind and stage, failures."""


def value(house, name, **labels):
    return house.scaler.metrics.registry.get_sample_value(f"glowplug_{name}", labels)


def test_replicas_and_their_starts(run):
    async def scenario(house):
        await house.deploy()
        assert value(house, "replicas_desired", function="f") == 0
        await house.report(queued=1, arrived=1)
        assert value(house, "replicas_desired", function="f") == 1
        assert value(house, "replicas_starting", function="f") == 1
        assert value(house, "replicas_ready", function="f") == 0
        await house.ready()
        assert value(house, "replicas_starting", function="f") == 0
        assert value(house, "replicas_ready", function="f") == 1
        assert value(house, "start_seconds_count", function="f", kind="snapshot") == 1
        stage = {"function": "f", "stage": "restore"}
        assert value(house, "start_stage_seconds_sum", **stage) == 0.04
        assert value(house, "standbys", accelerator="cpu") == 2

    run(scenario)


def test_failed_starts_and_deleted_functions(run):
    async def scenario(house):
        await house.deploy()
        await house.report(queued=1, arrived=1)
        (replica,) = house.fleet.live
        await house.die(replica, "out of memory")
        assert value(house, "start_failures_total", function="f") == 1
        await house.registry.delete("f")
        await house.settle()
        assert value(house, "start_failures_total", function="f") is None
        assert value(house, "replicas_desired", function="f") is None

    run(scenario)
