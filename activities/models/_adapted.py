"""What the requests to a model must be like that its endpoint takes: what all who read refusals have learned, in one place.

A word for each thing: `image_as_text`, `no_NAME` for a field that is left out, and the words of `_strict_messages`. What
holds for one model of an endpoint need not hold for another.
"""

from __future__ import annotations

from collections.abc import Iterable

from mulligan.activities.models.protocol import Request


class Adapted:
    """The words for the models of an endpoint."""

    def __init__(self) -> None:
        self._learned: dict[str, frozenset[str]] = {}

    def of(self, model: str) -> frozenset[str]:
        """What this worker knows of a model."""
        return self._learned.get(model, frozenset())

    def learn(self, model: str, words: Iterable[str]) -> bool:
        """Add what a refusal says, and return whether some of it is new.

        Args:
            model: The model's name.
            words: What its requests must be like.
        """
        new = frozenset(words) - self.of(model)
        self._learned[model] = self.of(model) | new
        return bool(new)

    def recall(self, request: Request) -> None:
        """Add what the conversation has recorded: another worker may have learned it.

        Args:
            request: A request of the conversation.
        """
        if request.adapted:
            self.learn(request.model, request.adapted)
