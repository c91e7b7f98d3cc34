"""Runs of the real `terraform`, offline, for the tests of tests/terraform."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RUN_LIMIT_S = 120.0
HEADER = """
terraform {
  required_providers {
    glowplug = {
      source = "terraform.local/glowplug/glowplug"
    }
  }
}
"""


@dataclass
class Run:
    """How a command ended."""

    code: int
    output: str  # both streams, on lines as wide as they are

    @property
    def text(self) -> str:
        """The output with line breaks and frames taken out, to look for sentences in."""
        return " ".join(self.output.replace("│", " ").replace("╷", " ").replace("╵", " ").split())


@dataclass
class Workspace:
    """A folder with a configuration and its state."""

    folder: Path
    plugins: Path
    environment: dict[str, str] = field(default_factory=dict)

    def write(self, configuration: str, *, name: str = "main.tf") -> None:
        """Put the configuration in place of the one there is; `terraform init` comes with it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        header = HEADER if name == "main.tf" else ""
        (self.folder / name).write_text(header + configuration)
        if not (self.folder / ".terraform").exists():
            self.init()

    def init(self) -> None:
        """Take the provider from the folder it is installed in, and from nowhere else."""
        self.run("init", f"-plugin-dir={self.plugins}", code=0)

    def apply(self, *options: str, code: int | None = 0) -> Run:
        return self.run("apply", "-auto-approve", *options, code=code)

    def plan(self, *options: str) -> Run:
        """Exit code 0: nothing to do, 1: an error, 2: changes."""
        return self.run("plan", "-detailed-exitcode", *options)

    def assert_no_changes(self) -> None:
        plan = self.plan()
        assert plan.code == 0, plan.output

    def destroy(self, *options: str) -> Run:
        return self.run("destroy", "-auto-approve", *options, code=0)

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.folder / "terraform.tfstate").read_text())
        return state

    def instances(self) -> dict[str, dict[str, Any]]:
        """Address → the managed resource as the state has it: `attributes`, and `status` where it
        is tainted."""
        found = {}
        for each in self.state()["resources"]:
            for instance in each["instances"]:
                module = f"{each['module']}." if "module" in each else ""
                key = f'["{instance["index_key"]}"]' if "index_key" in instance else ""
                if each["mode"] == "managed":
                    found[f"{module}{each['type']}.{each['name']}{key}"] = instance
        return found

    def values(self, address: str) -> dict[str, Any]:
        attributes: dict[str, Any] = self.instances()[address]["attributes"]
        return attributes

    def outputs(self) -> dict[str, Any]:
        return {name: each["value"] for name, each in self.state()["outputs"].items()}

    def errors(self) -> list[tuple[str, str, str]]:
        """(summary, detail, the line that it is about) of each error in the configuration."""
        shown = json.loads(self.run("validate", "-json").output)
        return [
            (each["summary"], each["detail"], (each.get("snippet") or {}).get("code", "").strip())
            for each in shown["diagnostics"]
            if each["severity"] == "error"
        ]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*_command(), *arguments],
            cwd=self.folder,
            env=_environment(self.environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str, code: int | None = None) -> Run:
        """Run `terraform` here; with `code` it has to end so."""
        done = subprocess.run(
            [*_command(), *arguments],
            cwd=self.folder,
            env=_environment(self.environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RUN_LIMIT_S,
            check=False,
        )
        run = Run(done.returncode, done.stdout)
        assert code is None or run.code == code, f"{arguments}: {run.code}\n{run.output}"
        return run


MakeWorkspace = Callable[[str, str], Workspace]  # of a name, for a server's endpoint


def _command() -> list[str]:
    found = shutil.which("terraform")
    assert found is not None
    return [found]


def _environment(more: dict[str, str]) -> dict[str, str]:
    """Ours without what would change how Terraform runs, and with what keeps it at home."""
    ours = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TF_", "GLOWPLUG_"))
    }
    fixed = {
        "TF_IN_AUTOMATION": "1",
        "TF_INPUT": "0",
        "TF_CLI_ARGS": "-no-color",
        "TF_CLI_CONFIG_FILE": os.devnull,
        "CHECKPOINT_DISABLE": "1",
    }
    return ours | fixed | more
