variable "name" {
  description = "A DNS label; part of the invoke URL."
  type        = string
}

variable "model" {
  description = "A folder or a .gguf file on the server, package://PACKAGE/FILE.gguf or s3://BUCKET/PREFIX."
  type        = string
}

variable "dtype" {
  description = "bfloat16 or float32."
  type        = string
  default     = null
}

variable "quantization" {
  description = "none, int8 or int4."
  type        = string
  default     = null
}

variable "accelerator" {
  description = "auto, cpu, cuda or a GPU's name."
  type        = string
  default     = null
}

variable "adapters" {
  description = "LoRA adapters by name."
  type        = map(string)
  default     = null
}

variable "min_replicas" {
  description = "Replicas that are always there; 0 costs nothing while nobody calls."
  type        = number
  default     = null
}

variable "max_replicas" {
  description = "Replicas at most."
  type        = number
  default     = null
}

variable "idle" {
  description = "Idle time until scale to zero, as 5m; learned where it is null."
  type        = string
  default     = null
}

variable "wait_timeout" {
  description = "How long an apply waits at most until the model is sealed."
  type        = string
  default     = null
}
