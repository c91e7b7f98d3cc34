"""What Terraform starts, by way of the launcher that `glowplug terraform install` writes."""

from tf.runner import run_provider

from terraform.provider.provider import GlowplugProvider

if __name__ == "__main__":
    run_provider(GlowplugProvider())
