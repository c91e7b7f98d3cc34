"""A running Glowplug, the installed provider and tiny models for the tests of this folder."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import transformers
from lora import save_with_peft
from serving import Serve, assert_all_end, start_serve
from terraform_runs import MakeWorkspace, Workspace
from tiny_models import SIZES, save_checkpoint

# Large enough for every quantisation.
LARGER = SIZES | {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without `terraform` these tests are skipped, but not in CI, which says so by CI=1."""
    if shutil.which("terraform") is None and not os.environ.get("CI"):
        reason = "there is no terraform on the PATH (https://developer.hashicorp.com/terraform)"
        for item in items:
            if Path(__file__).parent in item.path.parents and "workspace" in item.fixturenames:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two tiny models of one vocabulary, and two adapters of the first."""
    folder = tmp_path_factory.mktemp("models")
    names = ("first", "second", "pirate", "legal")
    paths = {name: folder / name for name in names}
    first = save_checkpoint(transformers.LlamaConfig(**LARGER), paths["first"])
    config = transformers.LlamaConfig(**LARGER | {"num_hidden_layers": 1})
    save_checkpoint(config, paths["second"])
    for seed, name in enumerate(("pirate", "legal")):
        save_with_peft(first, paths[name], seed=seed)
    return paths


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """One server for all; each test has functions of its own names."""
    serve = start_serve(tmp_path_factory.mktemp("server"))
    yield serve
    below = serve.below()
    assert serve.stop() == 0
    assert_all_end(below)


@pytest.fixture(scope="session")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `glowplug terraform install` has put the provider into."""
    folder = tmp_path_factory.mktemp("plugins")
    command = [sys.executable, "-m", "glowplug", "terraform", "install", "--dir", str(folder)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return folder


@pytest.fixture
def make_workspace(tmp_path: Path, plugins: Path) -> MakeWorkspace:
    """Makes workspaces by name, for a server's endpoint."""

    def make(name: str, endpoint: str) -> Workspace:
        return Workspace(tmp_path / name, plugins, {"GLOWPLUG_ENDPOINT": endpoint})

    return make


@pytest.fixture
def workspace(make_workspace: MakeWorkspace, server: Serve) -> Iterator[Workspace]:
    """An empty workspace for the server; what is deployed from it is destroyed behind the test."""
    made = make_workspace("workspace", server.endpoint)
    yield made
    if (made.folder / "terraform.tfstate").exists():
        made.destroy("-refresh=false")
