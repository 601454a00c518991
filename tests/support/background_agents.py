"""Agents whose models are called in the background."""

from __future__ import annotations

from pydantic import BaseModel

from mulligan import Agent, tool


@tool
def count_words(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


class Report(BaseModel):
    words: int


thinker = Agent(name="thinker", model="openai:none", instructions="Think.", tools=[count_words], background=True)
reporter = Agent(name="reporter", model="openai:none", tools=[count_words], output=Report, background=True)
hurried = Agent(
    name="hurried", model="openai:none", background=True, background_timeout=2, model_attempts=2, model_patience=60
)
impatient = Agent(name="impatient", model="openai:none", background=True, model_attempts=1)
