"""Rules of approval: what a person has approved, and what therefore is not asked again (docs/approval-rules.md)."""
