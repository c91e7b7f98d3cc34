"""An API key reaches the server from the environment, and nothing that Terraform writes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import Serve, assert_all_end, start_serve
from terraform_runs import MakeWorkspace

KEYS = {"admin": "sk-admin-0123456789", "caller": "sk-caller-0123456789"}


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Serve]:
    """A server that asks for keys."""
    keys = tmp_path / "keys"
    keys.write_text(f"{KEYS['admin']} ops admin\n{KEYS['caller']} team\n")
    serve = start_serve(tmp_path / "data", "--keys", str(keys))
    yield serve
    below = serve.below()
    assert serve.stop() == 0
    assert_all_end(below)


@pytest.mark.slow
def test_a_key_from_the_environment(
    make_workspace: MakeWorkspace, locked: Serve, models: dict[str, Path]
) -> None:
    workspace = make_workspace("workspace", locked.endpoint)
    workspace.write(
        'resource "glowplug_function" "it" {\n name = "secret"\n'
        f' model {{\n source = "{models["first"]}"\n dtype = "float32"\n }}\n}}'
    )
    assert "The function secret was not deployed" in workspace.apply(code=1).text
    workspace.environment["GLOWPLUG_API_KEY"] = KEYS["caller"]
    assert "admin" in workspace.apply(code=1).text
    workspace.environment["GLOWPLUG_API_KEY"] = KEYS["admin"]
    workspace.run("plan", "-out=it.tfplan", code=0)
    workspace.run("apply", "it.tfplan", code=0)
    workspace.assert_no_changes()
    written = [path for path in workspace.folder.rglob("*") if path.is_file()]
    assert workspace.folder / "terraform.tfstate" in written
    assert not [path for path in written if KEYS["admin"].encode() in path.read_bytes()]
    workspace.destroy()
