"""Agents whose models are called in the background."""

from __future__ import annotations

from pydantic import BaseModel

from mulligan import Agent, Background, tool


@tool
def count_words(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


class Report(BaseModel):
    words: int


thinker = Agent(
    name="thinker", model="openai:none", instructions="Think.", tools=[count_words], features=[Background()]
)
reporter = Agent(name="reporter", model="openai:none", tools=[count_words], output=Report, features=[Background()])
hurried = Agent(
    name="hurried", model="openai:none", features=[Background(timeout=2)], model_attempts=2, model_patience=60
)
impatient = Agent(name="impatient", model="openai:none", features=[Background()], model_attempts=1)
