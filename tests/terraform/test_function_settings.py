"""Every setting of glowplug_function, set, changed and taken away through the real `terraform`."""

from pathlib import Path
from typing import Any

import pytest
from serving import Serve
from terraform_runs import Workspace

from glowplug.spec import FunctionSpec
from terraform.provider.function_settings import SETTINGS
from terraform.provider.settings import to_spec, value_at


def values(models: dict[str, Path]) -> dict[str, tuple[str, str]]:
    """Attribute → two values that it can have, as HCL. Neither is its default."""
    first, second = models["first"], models["second"]
    pirate, legal = models["pirate"], models["legal"]
    return {
        "adapters": (f'{{ pirate = "{pirate}" }}', f'{{ legal = "{legal}" }}'),
        "model.quantization": ('"int8"', '"int4"'),
        "model.draft": (f'"{second}"', f'"{first}"'),
        "model.pooling": ('"last"', '"mean"'),
        "model.max_context": ("64", "128"),
        "accelerator.type": ('"cpu"', '"auto"'),
        "engine.max_seqs": ("2", "3"),
        "engine.kv_cache_bytes": ('"2MiB"', '"3MiB"'),
        "engine.prefix_snapshot_bytes": ('"1MiB"', "0"),
        "engine.adapter_cache_bytes": ('"16MiB"', '"32MiB"'),
        "engine.speculation": ('"off"', '"auto"'),
        "scaling.min_replicas": ("0", "0"),
        "scaling.max_replicas": ("4", "5"),
        "scaling.activation_replicas": ("2", "3"),
        "scaling.priority": ("-5", "7"),
        "keep_alive.idle": ('"5m"', '"1h30m"'),
        "keep_alive.sleep": ('"30s"', '"0.5s"'),
        "keep_alive.cold_start_cost": ('"10m"', "90"),
        "predictive.mode": ('"off"', '"forecast"'),
        "predictive.timezone": ('"Europe/Berlin"', '"Asia/Tokyo"'),
        "timeouts.start": ('"90s"', '"2m"'),
        "timeouts.request": ('"5m"', '"7m"'),
        "queue.max_requests": ("10", "20"),
        "queue.max_bytes": ('"1MiB"', '"2MiB"'),
    }


def configuration(model: Path, chosen: dict[str, str]) -> str:
    """A function with these attributes."""
    lines: dict[str, list[str]] = {"model": [f'source = "{model}"']}
    top = ['name = "settings"']
    for path, value in chosen.items():
        block, _, name = path.rpartition(".")
        (lines.setdefault(block, []) if block else top).append(f"{name} = {value}")
    blocks = [f"{block} {{\n" + "\n".join(inside) + "\n}" for block, inside in lines.items()]
    return 'resource "glowplug_function" "it" {\n' + "\n".join([*top, *blocks]) + "\n}\n"


def assert_deployed(server: Serve, workspace: Workspace, paths: list[str]) -> dict[str, Any]:
    """The server has what the state says of these attributes; its spec."""
    with server.client() as client:
        spec: dict[str, Any] = client.function("settings")["spec"]
    state = workspace.values("glowplug_function.it")
    for each in SETTINGS:
        assert each.means(value_at(state, each.path), value_at(spec, each.field)), each.path
        if ".".join(each.path) in paths:
            assert value_at(state, each.path) is not None, each.path
    return spec


def test_every_field_of_the_spec_is_one_setting() -> None:
    """But for schedules, which are glowplug_prewarm's."""
    fields = [each.field[0] for each in SETTINGS]
    assert set(fields) == set(FunctionSpec.model_fields) - {"schedules"}
    assert len({each.field for each in SETTINGS}) == len(SETTINGS)


def test_the_values_are_of_every_setting(tmp_path: Path) -> None:
    names = ("first", "second", "pirate", "legal")
    fixed = {"name", "model.source", "model.dtype", "model.digest"}
    paths = {".".join(each.path) for each in SETTINGS}
    assert set(values(dict.fromkeys(names, tmp_path))) == paths - fixed


@pytest.mark.slow
def test_all_settings_at_once(workspace: Workspace, server: Serve, models: dict[str, Path]) -> None:
    offered = values(models)
    for which in (0, 1):
        chosen = {path: each[which] for path, each in offered.items()}
        workspace.write(configuration(models["first"], chosen))
        workspace.apply()
        assert_deployed(server, workspace, list(chosen))
        workspace.assert_no_changes()

    workspace.write(configuration(models["first"], {}))
    workspace.apply()
    spec = assert_deployed(server, workspace, [])
    plain = FunctionSpec(name="settings", model=str(models["first"])).model_dump(mode="json")
    assert spec == plain  # what is taken out of the configuration has its default again
    workspace.assert_no_changes()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_setting_alone(workspace: Workspace, server: Serve, models: dict[str, Path]) -> None:
    """One after the other is changed, and nothing else with it."""
    offered = values(models)
    chosen = {path: each[0] for path, each in offered.items()}
    workspace.write(configuration(models["first"], chosen))
    workspace.apply()
    for path, (_, changed) in offered.items():
        before = assert_deployed(server, workspace, [])
        chosen[path] = changed
        workspace.write(configuration(models["first"], chosen))
        workspace.apply()
        after = assert_deployed(server, workspace, list(chosen))
        different = {name for name in before if before[name] != after[name]}
        [setting] = [each for each in SETTINGS if ".".join(each.path) == path]
        assert different == ({setting.field[0]} if path != "scaling.min_replicas" else set())


def test_the_digest_is_pinned(workspace: Workspace, server: Serve, models: dict[str, Path]) -> None:
    workspace.write(configuration(models["first"], {}))
    workspace.apply()
    digest = workspace.values("glowplug_function.it")["snapshot"]
    workspace.write(configuration(models["first"], {"model.digest": f'"{digest}"'}))
    workspace.apply()
    assert_deployed(server, workspace, ["model.digest"])
    workspace.assert_no_changes()

    wrong = "sha256-" + 64 * "0"
    workspace.write(configuration(models["first"], {"model.digest": f'"{wrong}"'}))
    run = workspace.apply(code=1)
    assert "its model cannot be sealed" in run.text.lower()


def test_unset_settings_stay_out_of_the_spec() -> None:
    assert to_spec(SETTINGS, {"name": "chat", "model": {"source": "/m"}}) == {
        "name": "chat",
        "model": "/m",
    }
