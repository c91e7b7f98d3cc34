output "id" {
  description = "The function's name."
  value       = glowplug_function.this.id
}

output "revision" {
  description = "This version of the model and its serving settings."
  value       = glowplug_function.this.revision
}

output "invoke_url" {
  description = "Where the function is called."
  value       = glowplug_function.this.invoke_url
}

output "openai_base_url" {
  description = "The base_url for OpenAI's clients."
  value       = glowplug_function.this.openai_base_url
}
