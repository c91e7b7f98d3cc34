resource "glowplug_function" "this" {
  name         = var.name
  adapters     = var.adapters
  wait_timeout = var.wait_timeout

  model {
    source       = var.model
    dtype        = var.dtype
    quantization = var.quantization
  }

  accelerator {
    type = var.accelerator
  }

  scaling {
    min_replicas = var.min_replicas
    max_replicas = var.max_replicas
  }

  keep_alive {
    idle = var.idle
  }
}
