"""glowplug_function through the real `terraform`: its life, and what a plan says."""

from pathlib import Path

import httpx
import pytest
from serving import Serve
from terraform_runs import Workspace

from glowplug.errors import NotFound

Models = dict[str, Path]


def function(name: str, model: Path | str, more: str = "") -> str:
    """A configuration with one function, of a model in float32 that needs little memory."""
    source = model if str(model).startswith("terraform_data") else f'"{model}"'
    return f"""
resource "glowplug_function" "it" {{
  name = "{name}"
  model {{
    source = {source}
    dtype  = "float32"
  }}
  engine {{
    kv_cache_bytes = "2MiB"
  }}
  {more}
}}
"""


def test_a_function_lives_and_dies(workspace: Workspace, server: Serve, models: Models) -> None:
    outputs = 'output "url" { value = glowplug_function.it.openai_base_url }'
    workspace.write(function("life", models["first"]) + outputs)
    workspace.apply()

    with server.client() as client:
        deployed = client.function("life")
    values = workspace.values("glowplug_function.it")
    for name in ("revision", "snapshot", "invoke_url", "openai_base_url"):
        assert values[name] == deployed[name] is not None
    assert (values["id"], values["status"]) == ("life", "callable")

    body = {"model": "life", "prompt": [5, 9, 33], "max_tokens": 2}
    answer = httpx.post(f"{workspace.outputs()['url']}/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    with server.client() as client:
        assert client.function("life")["replicas"]["ready"] == 1
    workspace.assert_no_changes()  # replicas and traffic are no part of it
    assert "replicas" not in workspace.values("glowplug_function.it")

    workspace.destroy()
    with server.client() as client, pytest.raises(NotFound):
        client.function("life")


def test_a_changed_model_is_a_new_revision_in_place(
    workspace: Workspace, server: Serve, models: Models
) -> None:
    workspace.write(function("inplace", models["first"]))
    workspace.apply()
    before = workspace.values("glowplug_function.it")
    with server.client() as client:
        created = client.function("inplace")["created"]

    workspace.write(function("inplace", models["second"]))
    plan = workspace.plan()
    assert "will be updated in-place" in plan.output and "0 to destroy" in plan.output
    workspace.apply()
    after = workspace.values("glowplug_function.it")
    assert before["revision"] != after["revision"]
    assert before["snapshot"] != after["snapshot"]
    with server.client() as client:
        assert client.function("inplace")["created"] == created
    workspace.assert_no_changes()


def test_a_changed_bound_leaves_the_revision(workspace: Workspace, models: Models) -> None:
    workspace.write(function("bounds", models["first"]))
    workspace.apply()
    before = workspace.values("glowplug_function.it")["revision"]

    workspace.write(function("bounds", models["first"], "scaling {\n max_replicas = 2\n }"))
    plan = workspace.plan()
    assert "status" in plan.output and "revision" not in plan.output
    workspace.apply()
    assert workspace.values("glowplug_function.it")["revision"] == before


def test_a_new_name_replaces(workspace: Workspace, server: Serve, models: Models) -> None:
    workspace.write(function("oldname", models["first"]))
    workspace.apply()
    workspace.write(function("newname", models["first"]))
    plan = workspace.plan()
    assert "must be replaced" in plan.output and "forces replacement" in plan.output
    workspace.apply()
    with server.client() as client:
        names = [each["name"] for each in client.functions()]
    assert "newname" in names and "oldname" not in names


def test_the_same_in_other_words_is_no_change(workspace: Workspace, models: Models) -> None:
    def idle(text: str) -> str:
        return function("words", models["first"], f'keep_alive {{\n idle = "{text}"\n }}')

    workspace.write(idle("300s"))
    workspace.apply()
    workspace.write(idle("5m"))
    workspace.assert_no_changes()
    workspace.write(idle("6m"))
    assert '"300s" -> "6m"' in workspace.plan().output


def test_it_is_imported(workspace: Workspace, server: Serve, models: Models) -> None:
    configuration = function("taken", models["first"], "scaling {\n max_replicas = 2\n }")
    spec = {
        "name": "taken",
        "model": str(models["first"]),
        "dtype": "float32",
        "kv_cache_bytes": "2MiB",
        "max_replicas": 2,
    }
    with server.client() as client:
        client.deploy(spec)
    workspace.write(configuration)
    workspace.run("import", "glowplug_function.it", "taken", code=0)
    workspace.assert_no_changes()

    missing = workspace.run("import", "glowplug_function.other", "nobody")
    assert missing.code == 1


def test_importing_what_is_not_there_says_so(workspace: Workspace, models: Models) -> None:
    workspace.write(function("absent", models["first"]))
    run = workspace.run("import", "glowplug_function.it", "absent", code=1)
    assert "There is no function 'absent'" in run.text


def test_drift_is_shown_and_repaired(workspace: Workspace, server: Serve, models: Models) -> None:
    workspace.write(function("drift", models["first"], "scaling {\n max_replicas = 2\n }"))
    workspace.apply()
    with server.client() as client:
        spec = client.function("drift")["spec"]
        client.deploy(spec | {"max_replicas": 3, "idle_s": 60})

    plan = workspace.plan()
    assert plan.code == 2
    assert "max_replicas = 3 -> 2" in plan.output
    assert '- idle = "60s" -> null' in plan.output
    workspace.apply()
    with server.client() as client:
        repaired = client.function("drift")["spec"]
    assert (repaired["max_replicas"], repaired["idle_s"]) == (2, None)
    workspace.assert_no_changes()


def test_what_was_deleted_by_others_is_made_again(
    workspace: Workspace, server: Serve, models: Models
) -> None:
    workspace.write(function("again", models["first"]))
    workspace.apply()
    with server.client() as client:
        client.delete("again")
        plan = workspace.plan()
        assert "1 to add" in plan.output
        workspace.apply()
        assert client.function("again")["snapshot"] is not None
        client.delete("again")
    workspace.destroy()  # there is nothing left to do, which is no error


def test_values_that_a_plan_cannot_know(workspace: Workspace, models: Models) -> None:
    """The model and a bound come from resources that are made in the same apply."""
    source = f"""
resource "terraform_data" "model" {{ input = "{models["first"]}" }}
resource "terraform_data" "most" {{ input = 3 }}
"""
    scaling = "scaling {\n min_replicas = 0\n max_replicas = terraform_data.most.output\n }"
    workspace.write(source + function("unknown", "terraform_data.model.output", scaling))
    assert "(known after apply)" in workspace.plan().output
    workspace.apply()
    assert workspace.values("glowplug_function.it")["scaling"]["max_replicas"] == 3
    workspace.assert_no_changes()


def test_an_apply_that_does_not_wait(workspace: Workspace, models: Models) -> None:
    workspace.write(function("nowait", models["first"], "wait = false"))
    workspace.apply()
    assert workspace.values("glowplug_function.it")["status"] in ("sealing", "callable")
    workspace.assert_no_changes()
