"""The front door: routes, auth, admission, per-function buffer, streaming proxy, control API."""
