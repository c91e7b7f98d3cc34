variables {
  name         = "chat"
  model        = "/models/chat"
  max_replicas = 2
  timezone     = "Europe/Berlin"

  peaks = {
    morning = { cron = "55 7 * * 1-5", duration = "2h", min_replicas = 2 }
    friday  = { cron = "0 15 * * 5", duration = "90m", enabled = false }
  }
}

run "each_peak_is_a_prewarm" {
  command = plan

  assert {
    condition     = glowplug_prewarm.this["morning"].timezone == "Europe/Berlin" && glowplug_prewarm.this["morning"].min_replicas == 2
    error_message = "The morning's prewarm is not the one that was given."
  }

  assert {
    condition     = glowplug_prewarm.this["friday"].min_replicas == 1 && !glowplug_prewarm.this["friday"].enabled
    error_message = "Friday's prewarm is not paused, or not for one replica."
  }
}
