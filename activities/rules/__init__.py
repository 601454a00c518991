"""The rules of tenants, as runs ask for them and add to them."""
