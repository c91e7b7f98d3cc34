"""The OpenAI-compatible HTTP server of a replica."""
