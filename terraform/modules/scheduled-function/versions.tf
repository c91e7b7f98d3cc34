terraform {
  required_version = ">= 1.5"

  required_providers {
    glowplug = {
      source  = "terraform.local/glowplug/glowplug"
      version = ">= 0.1.0"
    }
  }
}
