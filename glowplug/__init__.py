"""Glowplug: serverless, scale-to-zero inference for language models."""

__version__ = "0.1.0"
