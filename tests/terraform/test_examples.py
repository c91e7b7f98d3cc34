"""The modules and examples: formatted, valid, applied, destroyed; and the modules' own tests."""

import shutil
from pathlib import Path

import pytest
from serving import Serve
from terraform_runs import HEADER, Workspace

FOLDER = Path(__file__).parents[2] / "terraform"
EXAMPLES = ["one-machine", "many-functions", "scheduled-peak"]
MODULES = ["function", "scheduled-function"]


@pytest.fixture
def copied(workspace: Workspace) -> Workspace:
    """The workspace with copies of the modules and examples, so that nothing is written there."""
    for name in ("modules", "examples"):
        shutil.copytree(FOLDER / name, workspace.folder / name)
    return workspace


def inside(workspace: Workspace, folder: str) -> Workspace:
    found = Workspace(workspace.folder / folder, workspace.plugins, dict(workspace.environment))
    found.init()
    return found


def test_all_are_tested() -> None:
    assert {path.name for path in (FOLDER / "examples").iterdir()} == set(EXAMPLES)
    assert {path.name for path in (FOLDER / "modules").iterdir()} == set(MODULES)


def test_they_are_formatted(copied: Workspace) -> None:
    run = copied.run("fmt", "-check", "-diff", "-recursive")
    assert run.code == 0, run.output


@pytest.mark.parametrize("name", MODULES)
def test_a_module_passes_its_own_tests(copied: Workspace, name: str) -> None:
    module = inside(copied, f"modules/{name}")
    assert module.errors() == []
    run = module.run("test", code=0)
    assert "0 failed" in run.output
    assert "0 passed" not in run.output


@pytest.mark.slow
def test_one_machine(copied: Workspace, server: Serve, models: dict[str, Path]) -> None:
    example = inside(copied, "examples/one-machine")
    assert example.errors() == []
    example.environment["TF_VAR_model"] = str(models["first"])
    example.apply()
    assert example.outputs()["openai_base_url"] == f"{server.endpoint}/f/chat/v1"
    example.assert_no_changes()
    destroyed(example, server)


@pytest.mark.slow
def test_many_functions(copied: Workspace, server: Serve, models: dict[str, Path]) -> None:
    example = inside(copied, "examples/many-functions")
    assert example.errors() == []
    first, second = models["first"], models["second"]
    example.environment["TF_VAR_models"] = f'{{ one = "{first}", two = "{second}" }}'
    example.apply()
    outputs = example.outputs()
    assert outputs["openai_base_urls"]["two"] == f"{server.endpoint}/f/two/v1"
    assert {"one", "two"} <= set(outputs["names"])
    example.assert_no_changes()
    destroyed(example, server)


@pytest.mark.slow
def test_scheduled_peak(copied: Workspace, server: Serve, models: dict[str, Path]) -> None:
    example = inside(copied, "examples/scheduled-peak")
    assert example.errors() == []
    example.environment["TF_VAR_model"] = str(models["first"])
    example.apply()
    with server.client() as client:
        prewarms = {each["name"]: each["spec"] for each in client.prewarms("chat")}
    assert prewarms["morning"]["timezone"] == "Europe/Berlin"
    assert prewarms["morning"]["min_replicas"] == 2
    assert prewarms["launch"]["at"] == "2040-03-01T08:00"
    example.assert_no_changes()
    destroyed(example, server)


def destroyed(example: Workspace, server: Serve) -> None:
    names = {each["attributes"]["name"] for each in example.instances().values()}
    example.destroy()
    with server.client() as client:
        assert not names & {each["name"] for each in client.functions()}


def test_the_lock_file_is_good_elsewhere(workspace: Workspace, tmp_path: Path) -> None:
    """Whoever has installed the provider in another place can use the same lock file."""
    workspace.write("")
    python = tmp_path / "elsewhere" / "python"
    python.parent.mkdir()
    python.symlink_to(shutil.which("python3") or "/usr/bin/python3")
    other = tmp_path / "plugins"
    shutil.copytree(workspace.plugins, other)
    for sidecar in other.rglob("python.sh"):
        sidecar.write_text(f"GLOWPLUG_PYTHON={python}\n")
    shutil.rmtree(workspace.folder / ".terraform")
    run = workspace.run("init", "-lockfile=readonly", f"-plugin-dir={other}")
    assert run.code == 0, run.output


def test_a_plugin_folder_of_the_users_own(workspace: Workspace, tmp_path: Path) -> None:
    """~/.terraform.d/plugins needs no option at all."""
    home = tmp_path / "home"
    shutil.copytree(workspace.plugins, home / ".terraform.d" / "plugins")
    workspace.environment["HOME"] = str(home)
    workspace.folder.mkdir()
    (workspace.folder / "main.tf").write_text(HEADER + 'data "glowplug_functions" "all" {}\n')
    workspace.run("init", code=0)
    workspace.apply()
