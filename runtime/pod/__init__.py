"""The process tree: supervisor, fork server, standbys, replicas."""
