terraform {
  required_version = ">= 1.5"

  required_providers {
    glowplug = {
      source  = "terraform.local/glowplug/glowplug"
      version = ">= 0.1.0"
    }
  }
}

# GLOWPLUG_ENDPOINT and GLOWPLUG_API_KEY say which server, and who asks.
provider "glowplug" {}
