"""Model architectures: one file each, listed in registry.py."""
