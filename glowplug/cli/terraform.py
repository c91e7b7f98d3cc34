"""`glowplug terraform`: installing the Terraform provider."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Deploy with Terraform.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Deploy with Terraform."""


@app.command()
def install(
    *,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            metavar="DIR",
            help="The folder of plugins. Default: ~/.terraform.d/plugins, where Terraform looks.",
        ),
    ] = None,
) -> None:
    """Put the provider where Terraform finds it, and print the block that configurations need."""
    from importlib.util import find_spec

    from glowplug.errors import GlowplugError
    from terraform.provider import install as installing

    if find_spec("tf") is None:
        raise GlowplugError(
            "the provider needs the tf framework; get it with: pip install 'glowplug[terraform]'"
        )
    plugins = (folder or installing.plugin_folder()).expanduser().absolute()
    launcher = installing.install(plugins)
    typer.echo(f"installed {launcher}", err=True)
    if plugins != installing.plugin_folder():
        typer.echo(f"use it with: terraform init -plugin-dir={plugins}", err=True)
    typer.echo(installing.required_providers(), nl=False)
