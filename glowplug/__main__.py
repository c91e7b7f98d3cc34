"""`python -m glowplug` is the `glowplug` command."""

from glowplug.cli.main import main

main()
