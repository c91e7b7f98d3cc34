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

variable "max_replicas" {
  description = "Replicas at most."
  type        = number
  default     = null
}

variable "timezone" {
  description = "IANA zone that the peaks' times are in."
  type        = string
  default     = "UTC"
}

variable "peaks" {
  description = "Known peaks by name: when their replicas are ready, for how long, and how many."
  type = map(object({
    cron         = string
    duration     = string
    min_replicas = optional(number, 1)
    enabled      = optional(bool, true)
  }))
}
