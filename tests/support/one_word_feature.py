"""A feature that ends the turn at an answer with more than one word, after a wait that is its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from temporalio.exceptions import ApplicationError

from mulligan import Agent, AgentFeature, Say, Script
from mulligan.feature import EndTurn, Feature, FeatureParts, ModelAnswer, Wait, WaitKind


@dataclass(kw_only=True, eq=False)
class Doubt(Wait):
    name: ClassVar[str] = "doubt"

    @property
    def kind(self) -> WaitKind:
        return "timer"

    def describe(self, others: Sequence[Wait], key: str) -> tuple[str, str]:
        return "doubting", ""


class ShoutedError(ApplicationError):
    """The agent's workflow may catch it."""


class OneWordInWorkflow(Feature):
    waits: ClassVar = (Doubt,)

    async def accept(self, answer: ModelAnswer) -> None:
        if "!" in answer.message.text:
            raise ShoutedError("No shouting.", non_retryable=True)
        if " " in answer.message.text:
            with self.agent.waits.entered(Doubt(key="")) as wait:
                await self.agent.waits.until(wait, lambda: False, at=wait.since + 0.01)
            raise EndTurn("refused")


@dataclass(frozen=True)
class OneWord(AgentFeature):
    parts = FeatureParts("one_word_feature", workflow=OneWordInWorkflow)


SCRIPT = Script("two-words", [Say("Two words.")])
strict = Agent(name="strict", model="scripted:two-words", features=[OneWord()])
lax = Agent(name="lax", model="scripted:two-words")
loud = Agent(name="loud", model="scripted:shouting", features=[OneWord()])
SHOUTING = Script("shouting", [Say("No!")])
