"""How functions are deployed with Terraform: the provider here, modules and examples beside it."""
