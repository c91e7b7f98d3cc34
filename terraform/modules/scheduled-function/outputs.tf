output "id" {
  description = "The function's name."
  value       = module.function.id
}

output "invoke_url" {
  description = "Where the function is called."
  value       = module.function.invoke_url
}

output "openai_base_url" {
  description = "The base_url for OpenAI's clients."
  value       = module.function.openai_base_url
}
