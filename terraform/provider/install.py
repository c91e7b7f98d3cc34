"""Putting the provider where Terraform finds it, offline.

The layout is that of Terraform's filesystem mirrors, unpacked:
HOST/NAMESPACE/TYPE/VERSION/OS_ARCH/terraform-provider-TYPE_vVERSION. What lies in the innermost
folder is what `.terraform.lock.hcl` has the checksum of, so it is the same on every machine: a
launcher that finds this Python by a file beside that folder.
"""

import platform
import shlex
import sys
from pathlib import Path

from glowplug.errors import GlowplugError
from terraform.provider.address import HOST, NAMESPACE, SOURCE, TYPE, VERSION

_ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_LAUNCHER = """\
#!/bin/sh
# Starts Glowplug's provider with the Python that `glowplug terraform install` ran in, else with
# $GLOWPLUG_PYTHON, else with python3.
here=$(dirname "$(readlink -f "$0")")
if [ -r "$here/../python.sh" ]; then . "$here/../python.sh"; fi
exec "${GLOWPLUG_PYTHON:-python3}" -P -m terraform.provider "$@"
"""


def plugin_folder() -> Path:
    """Where Terraform looks without being told."""
    return Path.home() / ".terraform.d" / "plugins"


def target() -> str:
    """This machine as Terraform names it, such as linux_amd64.

    Raises:
        GlowplugError: the provider cannot be installed on one.
    """
    system, machine = platform.system().lower(), platform.machine().lower()
    if system not in ("linux", "darwin") or machine not in _ARCHITECTURES:
        raise GlowplugError(
            f"the provider cannot be installed on {system} {machine}; it runs on Linux and macOS, "
            "on amd64 and arm64"
        )
    return f"{system}_{_ARCHITECTURES[machine]}"


def install(plugins: Path) -> Path:
    """Put the provider into a folder of plugins; the launcher that Terraform will start.

    Raises:
        GlowplugError: not on this kind of machine.
        OSError: the folder cannot be written.
    """
    version = plugins / HOST / NAMESPACE / TYPE / VERSION
    folder = version / target()
    folder.mkdir(parents=True, exist_ok=True)
    python = shlex.quote(sys.executable)
    _write(version / "python.sh", f"GLOWPLUG_PYTHON=${{GLOWPLUG_PYTHON:-{python}}}\n", 0o644)
    launcher = folder / f"terraform-provider-{TYPE}_v{VERSION}"
    _write(launcher, _LAUNCHER, 0o755)
    return launcher


def required_providers() -> str:
    """The block that a configuration needs."""
    return f"""\
terraform {{
  required_providers {{
    {TYPE} = {{
      source  = "{SOURCE}"
      version = "{VERSION}"
    }}
  }}
}}
"""


def _write(path: Path, text: str, mode: int) -> None:
    """Replace the file at once: Terraform may be starting it."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    new.chmod(mode)
    new.replace(path)
