"""Applies that go wrong: models that cannot be sealed, others' changes, outages and crashes.

Nothing is lost, and the next apply gets there.
"""

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from serving import Serve, assert_all_end, eventually, start_serve
from terraform_runs import MakeWorkspace, Workspace

from glowplug.client import Client

Models = dict[str, Path]
IT = "glowplug_function.it"


def function(name: str, model: Path | str, more: str = "") -> str:
    return f"""
resource "glowplug_function" "it" {{
  name = "{name}"
  model {{
    source = "{model}"
    dtype  = "float32"
  }}
  {more}
}}
"""


def test_a_failed_seal_taints(workspace: Workspace, server: Serve, models: Models) -> None:
    workspace.write(function("badmodel", "/no/such/model"))
    run = workspace.apply(code=1)
    assert "The function badmodel was not deployed" in run.text
    assert "its model cannot be sealed: /no/such/model" in run.text.lower()
    assert workspace.instances()[IT]["status"] == "tainted"
    with server.client() as client:
        assert client.function("badmodel")["state"] == "failed"  # it is there to look at

    workspace.write(function("badmodel", models["first"]))
    assert "is tainted, so must be replaced" in workspace.plan().output
    workspace.apply()
    assert workspace.values(IT)["status"] == "callable"
    workspace.assert_no_changes()


def test_a_failed_update_is_tried_again(
    workspace: Workspace, server: Serve, models: Models, tmp_path: Path
) -> None:
    workspace.write(function("badupdate", models["first"]))
    workspace.apply()
    later = tmp_path / "later"
    workspace.write(function("badupdate", later))
    run = workspace.apply(code=1)
    assert "The function badupdate was not changed" in run.text
    assert "status" not in workspace.instances()[IT]  # not tainted: the old revision answers

    plan = workspace.plan()  # the same configuration: it is still to be done
    assert '"failed" -> (known after apply)' in plan.output and plan.code == 2
    models["second"].rename(later)
    try:
        workspace.apply()
    finally:
        later.rename(models["second"])
    assert workspace.values(IT)["status"] == "callable"


def test_a_wait_that_is_too_short(workspace: Workspace, models: Models, tmp_path: Path) -> None:
    new = tmp_path / "new"  # so that it is not sealed yet
    shutil.copytree(models["second"], new)
    workspace.write(function("hasty", new, 'wait_timeout = "1ms"'))
    run = workspace.apply(code=1)
    assert "its model is not sealed after 0.001 s" in run.text.lower()
    assert workspace.instances()[IT]["status"] == "tainted"


def test_a_name_that_is_taken(workspace: Workspace, server: Serve, models: Models) -> None:
    with server.client() as client:
        client.deploy({"name": "mine", "model": str(models["second"]), "max_replicas": 2})
        workspace.write(function("mine", models["first"]))
        run = workspace.apply(code=1)
        assert "a function mine with other settings exists already" in run.text.lower()
        assert "terraform import address mine" in run.text.lower()
        assert client.function("mine")["spec"]["max_replicas"] == 2  # untouched
        assert IT not in workspace.instances()
        client.delete("mine")


@pytest.mark.slow
def test_two_applies_at_once(make_workspace: MakeWorkspace, server: Serve, models: Models) -> None:
    """Of two that want the name for different functions, one gets it."""
    workspaces = [make_workspace(name, server.endpoint) for name in ("one", "other")]
    for workspace, model in zip(workspaces, ("first", "second"), strict=True):
        workspace.write(function("both", models[model]))
    applies = [workspace.start("apply", "-auto-approve") for workspace in workspaces]
    outputs = [apply.communicate(timeout=100)[0] for apply in applies]
    codes = [apply.returncode for apply in applies]
    assert sorted(codes) == [0, 1], outputs
    assert "exists already" in outputs[codes.index(1)]
    workspaces[codes.index(0)].assert_no_changes()
    workspaces[codes.index(1)].destroy()  # it has nothing, so the other's stays
    workspaces[codes.index(0)].assert_no_changes()
    workspaces[codes.index(0)].destroy()


def test_a_foreign_change_between_plan_and_apply(
    workspace: Workspace, server: Serve, models: Models
) -> None:
    workspace.write(function("contested", models["first"]))
    workspace.apply()
    workspace.write(function("contested", models["first"], "scaling {\n max_replicas = 2\n }"))
    workspace.run("plan", "-out=later.tfplan", code=0)
    with server.client() as client:
        client.deploy(client.function("contested")["spec"] | {"priority": 5})
        run = workspace.run("apply", "later.tfplan", code=1)
        assert "somebody else has changed it since this was planned" in run.text.lower()
        assert client.function("contested")["spec"]["priority"] == 5
    workspace.apply()
    workspace.assert_no_changes()


def test_a_provider_that_is_killed(workspace: Workspace, server: Serve, models: Models) -> None:
    """Between the function's creation and the end of its sealing."""
    workspace.write(function("crash", models["first"]))
    apply = workspace.start("apply", "-auto-approve")
    with server.client() as client:
        eventually(lambda: "crash" in names(client), what="the function is created")
        for child in psutil.Process(apply.pid).children(recursive=True):
            if "terraform.provider" in child.cmdline():
                child.kill()
    output, _ = apply.communicate(timeout=60)
    assert apply.returncode == 1, output
    assert IT not in workspace.instances()

    assert "Warning: The function crash was taken over" in workspace.apply().text
    assert workspace.values(IT)["status"] == "callable"
    workspace.assert_no_changes()


def names(client: Client) -> list[str]:
    return [each["name"] for each in client.functions()]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture
def restarts(tmp_path: Path) -> Iterator[list[Serve]]:
    """Servers of which each is stopped before the next is started, on one data folder."""
    started: list[Serve] = []
    yield started
    for serve in started:
        below = serve.below() if serve.process.poll() is None else []
        serve.stop()
        assert_all_end(below)


@pytest.mark.slow
def test_an_outage_of_the_server(
    make_workspace: MakeWorkspace, restarts: list[Serve], models: Models, tmp_path: Path
) -> None:
    port = free_port()

    def start() -> None:
        restarts.append(start_serve(tmp_path / "data", "--port", str(port)))

    workspace = make_workspace("outage", f"http://127.0.0.1:{port}")
    workspace.write(function("outage", models["first"]))
    run = workspace.apply(code=1)
    assert f"No Glowplug server answers at http://127.0.0.1:{port}" in run.text
    start()
    workspace.apply()

    workspace.write(function("outage", models["first"], "scaling {\n priority = 1\n }"))
    workspace.run("plan", "-out=later.tfplan", code=0)
    restarts[-1].stop()
    run = workspace.run("apply", "later.tfplan", code=1)
    assert "No Glowplug server answers" in run.text
    before = workspace.values(IT)
    run = workspace.run("plan", code=1)
    assert "No Glowplug server answers" in run.text
    assert workspace.values(IT) == before  # an outage is no deletion

    start()
    workspace.apply()
    workspace.assert_no_changes()
    with restarts[-1].client() as client:
        assert client.function("outage")["spec"]["priority"] == 1
    workspace.destroy()


@pytest.mark.slow
def test_a_server_that_restarts_while_it_seals(
    make_workspace: MakeWorkspace, restarts: list[Serve], models: Models, tmp_path: Path
) -> None:
    """The wait goes on when it is back."""
    port = free_port()
    options = (tmp_path / "data", "--port", str(port))
    restarts.append(start_serve(*options))
    workspace = make_workspace("restart", restarts[0].endpoint)
    workspace.write(function("restart", models["first"]))
    apply = workspace.start("apply", "-auto-approve")
    with restarts[0].client() as client:
        eventually(lambda: "restart" in names(client), what="the function is created")
    restarts[0].process.kill()
    restarts[0].process.communicate()
    restarts.append(start_serve(*options))
    output, _ = apply.communicate(timeout=100)
    assert apply.returncode == 0, output
    workspace.assert_no_changes()
    workspace.destroy()
