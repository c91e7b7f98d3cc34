variables {
  name  = "chat"
  model = "/models/chat"
}

run "the_common_case" {
  command = plan

  assert {
    condition     = glowplug_function.this.name == "chat" && glowplug_function.this.model.source == "/models/chat"
    error_message = "The name or the model is not the one that was given."
  }
}

run "bounds" {
  command = plan

  variables {
    min_replicas = 1
    max_replicas = 3
    idle         = "5m"
  }

  assert {
    condition     = glowplug_function.this.scaling.max_replicas == 3 && glowplug_function.this.keep_alive.idle == "5m"
    error_message = "The bounds are not those that were given."
  }
}
