"""Agents whose models are called in batches."""

from __future__ import annotations

from mulligan import Agent
from tests.support.background_agents import count_words

clerk = Agent(name="clerk", model="openai:gpt-5-mini", instructions="Work.", tools=[count_words], batch=True)
chatting_clerk = Agent(name="chatting_clerk", model="openai-chat:gpt-5-mini", tools=[count_words], batch=True)
