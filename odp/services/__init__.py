"""How a developer reaches the services."""
