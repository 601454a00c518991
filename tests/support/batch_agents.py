"""Agents whose models are called in batches."""

from __future__ import annotations

from mulligan import Agent, Batch, ProviderStrategy
from tests.support.background_agents import Report, count_words

careful_clerk = Agent(name="careful_clerk", model=["openai:gpt-5-mini", "openai-chat:gpt-5-mini"], features=[Batch()])
reporter = Agent(name="batch_reporter", model="openai:gpt-5-mini", output=ProviderStrategy(Report), features=[Batch()])
clerk = Agent(name="clerk", model="openai:gpt-5-mini", instructions="Work.", tools=[count_words], features=[Batch()])
chatting_clerk = Agent(name="chatting_clerk", model="openai-chat:gpt-5-mini", tools=[count_words], features=[Batch()])
