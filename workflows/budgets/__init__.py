"""Budgets of tenants: what one has spent on a day, and runs that wait for the next (docs/budgets.md)."""
