"""How many replicas and where: registry, plan, reconciler, fleets."""
