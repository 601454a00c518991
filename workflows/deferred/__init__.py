"""Calls whose tool has started something elsewhere, and the update that brings their results."""
