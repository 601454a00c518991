"""What is pinned of the models that a run may ask, as it opens: a part of `AgentFacts`, and so in history."""

from __future__ import annotations

from pydantic import BaseModel, Field

from mulligan.prices import Price

__all__ = ["ModelFacts"]


class ModelFacts(BaseModel):
    """Models are `provider:NAME`. `prices` has those that are known, of each model that the run may ask; USD."""

    model: str
    fallbacks: list[str] = Field(default=[], exclude_if=lambda value: not value)
    """Who is asked after `model`, in this order."""
    fallback_patience: float | None = Field(default=None, exclude_if=lambda value: value is None)
    """Seconds that a model is waited for where another one follows; None: as long as the last."""
    max_cost: float | None = Field(default=None, exclude_if=lambda value: value is None)
    prices: dict[str, Price] = Field(default={}, exclude_if=lambda value: not value)
