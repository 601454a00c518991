"""Model calls as background responses: created at the provider, waited for by timers, and read when they have ended."""
