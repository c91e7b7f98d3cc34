"""glowplug_prewarm through the real `terraform`."""

from pathlib import Path

import pytest
from serving import Serve
from terraform_runs import Workspace

from glowplug.client import Client
from glowplug.errors import NotFound

MORNING = {
    "cron": '"55 7 * * 1-5"',
    "duration": '"2h"',
    "timezone": '"Europe/Berlin"',
    "min_replicas": "2",
}


def configuration(name: str, model: Path, prewarms: dict[str, dict[str, str]], more: str) -> str:
    """A function and its prewarms."""
    resources = [
        f"""
resource "glowplug_function" "it" {{
  name = "{name}"
  model {{
    source = "{model}"
    dtype  = "float32"
  }}
  scaling {{
    max_replicas = 2
  }}
  {more}
}}"""
    ]
    for prewarm, settings in prewarms.items():
        lines = "\n".join(f"{key} = {value}" for key, value in settings.items())
        resources.append(
            f'resource "glowplug_prewarm" "{prewarm}" {{\n'
            f'function = glowplug_function.it.id\n name = "{prewarm}"\n{lines}\n}}'
        )
    return "\n".join(resources)


def write(
    workspace: Workspace, name: str, model: Path, more: str = "", **prewarms: dict[str, str]
) -> None:
    workspace.write(configuration(name, model, prewarms, more))


def test_a_prewarm_lives_and_dies(
    workspace: Workspace, server: Serve, models: dict[str, Path]
) -> None:
    write(workspace, "peaks", models["first"], morning=MORNING)
    workspace.apply()
    with server.client() as client:
        spec = client.prewarm("peaks", "morning")["spec"]
    assert spec == {
        "name": "morning",
        "cron": "55 7 * * 1-5",
        "at": None,
        "duration": 7200.0,
        "timezone": "Europe/Berlin",
        "min_replicas": 2,
        "enabled": True,
    }
    assert workspace.values("glowplug_prewarm.morning")["id"] == "peaks/morning"
    workspace.assert_no_changes()

    write(workspace, "peaks", models["first"])
    workspace.apply()
    with server.client() as client, pytest.raises(NotFound):
        client.prewarm("peaks", "morning")


def test_each_attribute_changes(
    workspace: Workspace, server: Serve, models: dict[str, Path]
) -> None:
    once = {"at": '"2040-03-01T08:00"', "duration": '"90m"'}
    write(workspace, "changes", models["first"], it=once)
    workspace.apply()
    changed = {
        "cron": '"0  8 * * *"',  # in place of `at`; the server writes it with one space
        "duration": "7200",
        "timezone": '"Asia/Tokyo"',
        "min_replicas": "2",
        "enabled": "false",
    }
    write(workspace, "changes", models["first"], it=changed)
    assert "0 to destroy" in workspace.plan().output
    workspace.apply()
    with server.client() as client:
        spec = client.prewarm("changes", "it")["spec"]
    assert spec == {
        "name": "it",
        "cron": "0 8 * * *",
        "at": None,
        "duration": 7200.0,
        "timezone": "Asia/Tokyo",
        "min_replicas": 2,
        "enabled": False,
    }
    workspace.assert_no_changes()
    write(workspace, "changes", models["first"], it=once)
    workspace.apply()
    with server.client() as client:
        spec = client.prewarm("changes", "it")["spec"]
    assert (spec["cron"], spec["timezone"], spec["enabled"]) == (None, "UTC", True)


def test_changing_the_function_leaves_its_prewarms(
    workspace: Workspace, server: Serve, models: dict[str, Path]
) -> None:
    write(workspace, "keeps", models["first"], morning=MORNING)
    workspace.apply()
    with server.client() as client:
        by_hand = {"cron": "0 12 * * *", "duration": "1h"}
        client.put_prewarm("keeps", "noon", by_hand)
        write(
            workspace, "keeps", models["second"], 'keep_alive {\n idle = "1m"\n }', morning=MORNING
        )
        workspace.apply()
        assert client.function("keeps")["spec"]["idle_s"] == 60
        assert [each["name"] for each in client.prewarms("keeps")] == ["morning", "noon"]
    workspace.assert_no_changes()  # what others scheduled is none of its business


def test_replacing_the_function_makes_its_prewarms_again(
    workspace: Workspace, server: Serve, models: dict[str, Path]
) -> None:
    write(workspace, "replaced", models["first"], morning=MORNING)
    workspace.apply()
    workspace.apply("-replace=glowplug_function.it")
    with server.client() as client:
        assert client.prewarm("replaced", "morning")["spec"]["duration"] == 7200
    workspace.assert_no_changes()


def test_drift_import_and_conflict(
    workspace: Workspace, server: Serve, models: dict[str, Path]
) -> None:
    write(workspace, "imports", models["first"])
    workspace.apply()
    with server.client() as client:
        drifted = {"cron": "0 9 * * *", "duration": "1h", "min_replicas": 2}
        client.put_prewarm("imports", "morning", drifted)
        write(workspace, "imports", models["first"], morning=MORNING)

        run = workspace.apply(code=1)
        assert "a prewarm imports/morning with other settings exists already" in run.text.lower()
        workspace.run("import", "glowplug_prewarm.morning", "imports/morning", code=0)
        plan = workspace.plan()
        assert '"0 9 * * *" -> "55 7 * * 1-5"' in plan.output
        workspace.apply()
        assert client.prewarm("imports", "morning")["spec"]["cron"] == "55 7 * * 1-5"
        workspace.assert_no_changes()

        client.delete_prewarm("imports", "morning")
        assert "1 to add" in workspace.plan().output


def test_more_than_the_function_may_have(workspace: Workspace, models: dict[str, Path]) -> None:
    write(workspace, "toomany", models["first"], morning=MORNING | {"min_replicas": "3"})
    run = workspace.apply(code=1)
    assert "over max_replicas 2" in run.text
    assert "min_replicas = 3" in run.text  # the line that it is about


def test_a_foreign_change_between_plan_and_apply(
    workspace: Workspace, server: Serve, models: dict[str, Path]
) -> None:
    write(workspace, "race", models["first"], morning=MORNING)
    workspace.apply()
    write(workspace, "race", models["first"], morning=MORNING | {"duration": '"3h"'})
    workspace.run("plan", "-out=later.tfplan", code=0)
    with server.client() as client:
        put_by_another(client)
        run = workspace.run("apply", "later.tfplan", code=1)
        assert "somebody else has changed it" in run.text.lower()
        assert client.prewarm("race", "morning")["spec"]["duration"] == 600
        workspace.apply()  # plans again, and takes it back
        assert client.prewarm("race", "morning")["spec"]["duration"] == 10800


def put_by_another(client: Client) -> None:
    client.put_prewarm("race", "morning", {"cron": "0 6 * * *", "duration": "10m"})
