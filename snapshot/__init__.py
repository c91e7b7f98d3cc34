"""Seal models into snapshots, keep them in a node cache, restore them.

This module imports nothing: `snapshot.manifest`, `snapshot.node_cache` and `snapshot.sealer` start
without torch; `snapshot.seal` and `snapshot.restore` bring it.
"""
