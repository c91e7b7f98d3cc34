"""Scheduling, KV blocks, batches, sampling: see loop.py for the whole of it."""
