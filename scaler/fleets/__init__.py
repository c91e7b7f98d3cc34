"""Places where replicas run; each module implements `glowplug.contracts.Fleet`."""
