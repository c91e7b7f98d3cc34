"""The provider `glowplug`: Terraform's resources, by way of Glowplug's control API.

Terraform runs it as a process (`python -m terraform.provider`) and talks gRPC with it, which is
the `tf` framework's business. It imports Glowplug's contracts and its client, no part of the
server.
"""
