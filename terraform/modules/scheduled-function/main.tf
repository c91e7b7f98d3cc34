module "function" {
  source = "../function"

  name         = var.name
  model        = var.model
  dtype        = var.dtype
  max_replicas = var.max_replicas
}

resource "glowplug_prewarm" "this" {
  for_each = var.peaks

  function     = module.function.id
  name         = each.key
  cron         = each.value.cron
  duration     = each.value.duration
  timezone     = var.timezone
  min_replicas = each.value.min_replicas
  enabled      = each.value.enabled
}
