"""What tenants spend: asked before each model call, and added up after it."""
