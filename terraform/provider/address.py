"""Under what name Terraform finds the provider.

The host does not exist: the provider is installed into a folder, and no registry that anybody could
register there is asked for it.
"""

from glowplug import __version__

HOST = "terraform.local"
NAMESPACE = "glowplug"
TYPE = "glowplug"
SOURCE = f"{HOST}/{NAMESPACE}/{TYPE}"
VERSION = __version__
