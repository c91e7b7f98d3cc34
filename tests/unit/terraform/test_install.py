"""`glowplug terraform install`: the layout, the launcher, and what it prints."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from glowplug.cli.main import run
from glowplug.errors import GlowplugError
from terraform.provider import install


def test_it_lies_where_terraform_looks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["terraform", "install", "--dir", str(tmp_path)]) == 0
    [launcher] = tmp_path.glob("*/*/*/*/*/*")
    version, target = launcher.parts[-3:-1]
    assert launcher.relative_to(tmp_path).parts[:3] == ("terraform.local", "glowplug", "glowplug")
    assert launcher.name == f"terraform-provider-glowplug_v{version}"
    assert target == install.target()
    assert os.access(launcher, os.X_OK)
    printed = capsys.readouterr()
    assert f'version = "{version}"' in printed.out
    assert 'source  = "terraform.local/glowplug/glowplug"' in printed.out
    assert f"-plugin-dir={tmp_path}" in printed.err


def test_the_folder_is_terraforms_own_if_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run(["terraform", "install"]) == 0
    assert list(tmp_path.glob(".terraform.d/plugins/terraform.local/*/*/*/*/terraform-provider-*"))
    assert "-plugin-dir" not in capsys.readouterr().err


def test_the_checksum_is_the_same_on_every_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """.terraform.lock.hcl is shared by people whose Python lies elsewhere."""
    here = install.install(tmp_path / "here")
    monkeypatch.setattr(sys, "executable", "/opt/else/where/python")
    there = install.install(tmp_path / "there")
    files = [sorted(path.name for path in each.parent.iterdir()) for each in (here, there)]
    assert files[0] == files[1] == [here.name]
    digests = {hashlib.sha256(each.read_bytes()).hexdigest() for each in (here, there)}
    assert len(digests) == 1


@pytest.mark.parametrize("through_link", [False, True])
def test_the_launcher_finds_this_python(tmp_path: Path, through_link: bool) -> None:
    """Also by way of the symbolic link that `terraform init` makes, with any folder around it."""
    launcher = install.install(tmp_path / "the plugins")
    if through_link:
        (tmp_path / "link").symlink_to(launcher.parent)
        launcher = tmp_path / "link" / launcher.name
    environment = {name: value for name, value in os.environ.items() if name != "GLOWPLUG_PYTHON"}
    process = subprocess.Popen(
        [str(launcher)],
        cwd=tmp_path,
        env=environment | {"PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("1|6|unix|")  # what Terraform waits for
        assert Path(f"/proc/{process.pid}/exe").resolve() == Path(sys.executable).resolve()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("system", "machine", "target"),
    [
        ("Linux", "x86_64", "linux_amd64"),
        ("Linux", "aarch64", "linux_arm64"),
        ("Darwin", "arm64", "darwin_arm64"),
    ],
)
def test_platforms(monkeypatch: pytest.MonkeyPatch, system: str, machine: str, target: str) -> None:
    monkeypatch.setattr("platform.system", lambda: system)
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert install.target() == target


def test_where_it_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Windows")
    with pytest.raises(GlowplugError, match="Linux and macOS"):
        install.target()
