"""The queries that every workflow with agents answers: `progress`, `messages`, `steps` and `events`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

from pydantic import BaseModel
from temporalio import workflow

from mulligan.values import ConversationInfo, Step
from mulligan.wire.resume_page import RESUME_STATE_QUERY
from mulligan.workflows import limits
from mulligan.workflows.agent_progress import agent_progress
from mulligan.workflows.conversation.event_page import event_page
from mulligan.workflows.conversation.records import EarlierPart
from mulligan.workflows.fork_point import fork_state, resume_state
from mulligan.workflows.running_agent import RunningAgent


class AgentQueries:
    """The queries of one workflow. `agents`: its agents by their keys.

    Each query has an optional `conversation`: the key of an agent, in a workflow with several. Without it, `progress` is
    that of the agent that is working, or worked last; the other queries read the first agent.
    """

    def __init__(self, agents: Mapping[str, RunningAgent]) -> None:
        self._agents = agents

    def set_handlers(self) -> None:
        """Register those queries that the workflow does not define itself."""
        for name, handler in (
            ("progress", self.progress),
            ("messages", self.messages),
            ("steps", self.steps),
            ("events", self.events),
            (RESUME_STATE_QUERY, self.resume_state),
        ):
            if workflow.get_query_handler(name) is None:
                workflow.set_query_handler(name, handler)

    def progress(self, conversation: str | None = None) -> dict[str, Any]:
        """The status of the run, its numbers so far, and what it waits for."""
        agent = self._find(conversation) if conversation is not None else self._current()
        if agent is None:
            return {"status": "failed"}
        progress = agent_progress(agent)
        used = [turn for each in self._agents.values() for turn in each.used]
        if len(used) > 1:
            progress.all_turns = reduce(add, used)
        if len(self._agents) > 1:
            progress.conversations = [
                ConversationInfo(
                    conversation=key, agent=each.name, status=each.shown_status if each.has_begun else "not_started"
                )
                for key, each in self._agents.items()
            ]
        return progress.model_dump(mode="json")

    def messages(self, since: int = 0, limit: int = 100, conversation: str | None = None) -> dict[str, Any]:
        """The conversation's messages from number `since` on: as many as fit."""
        agent = self._find(conversation)
        if agent is None:
            return {"messages": [], "next": None, "total": 0}
        log = agent.conversation
        return _page("messages", log.page, log.first_message, len(log.messages), log.earlier, since, limit)

    def steps(self, since: int = 0, limit: int = 100, conversation: str | None = None) -> dict[str, Any]:
        """The conversation's steps from index `since` on: as many as fit."""
        agent = self._find(conversation)
        if agent is None:
            return {"steps": [], "next": None, "total": 0}
        log = agent.conversation

        def read(start: int, count: int, most_bytes: int) -> list[Step]:
            return [_with_version(agent, step) for step in log.step_page(start, count, most_bytes)]

        return _page("steps", read, log.first_step, len(log.steps), log.earlier, since, limit)

    def events(
        self, since: int = 0, limit: int = 100, conversation: str | None = None, step: int | None = None
    ) -> dict[str, Any]:
        """The conversation's events from offset `since` on: as many as fit. `step`: only those of one step."""
        agent = self._find(conversation)
        if agent is None:
            return {"events": [], "next": None, "total": 0}
        result = agent.turn.result if agent.has_turn and agent.status not in ("failed", "cancelled") else None
        # With external storage, results may be as large as what is carried: a query's answer is stored, too.
        most_bytes = max(limits.EVENT_BYTES, (agent.facts.carry_bytes if agent.has_turn else None) or 0)
        page = event_page(agent.conversation, agent.key, result, since, limit, most_bytes, step)
        attempts = [wait.attempt for wait in agent.waits.open.values() if wait.attempt is not None]
        if page["writing"] is not None and attempts:
            page["writing"]["attempt"] = attempts[-1]
        return page

    def resume_state(self, since: int = 0, at: int | None = None, conversation: str | None = None) -> Any:
        """A page of what another run needs that begins with messages of this one, from message `since` on; None: an agent
        that never began has none. `at`: as of the query.
        """
        agent = self._find(conversation if at is None else self._key_of(conversation))
        if agent is None:
            return None
        state = resume_state(agent, since) if at is None else fork_state(agent, at or None, since)
        return state.model_dump(mode="json") if state else None

    def _key_of(self, conversation: str | None) -> str | None:
        """The key of the agent with a name that no other agent has, in place of that name."""
        keys = [key for key, agent in self._agents.items() if agent.name == conversation]
        return keys[0] if len(keys) == 1 and conversation not in self._agents else conversation

    def _find(self, conversation: str | None) -> RunningAgent | None:
        """The agent with a key, or the first one. None if the workflow has no agent yet."""
        if conversation is None:
            return next(iter(self._agents.values()), None)
        if conversation not in self._agents:
            keys = ", ".join(f"{key} ({agent.name})" for key, agent in self._agents.items()) or "none"
            raise ValueError(f"There is no conversation {conversation[:80]!r}. The conversations are: {keys}.")
        return self._agents[conversation]

    def _current(self) -> RunningAgent | None:
        """The agent whose turn is open, or else the agent with the latest turn."""
        agents = self._agents.values()
        working = next((agent for agent in agents if agent.is_turn_open), None)
        begun = [agent for agent in agents if agent.has_begun]
        return working or (begun[-1] if begun else self._find(None))


def _with_version(agent: RunningAgent, step: Step) -> Step:
    """The step with the version of the agent's file, if its agent is one."""
    facts = agent.turn_of(step.step).facts_of(step.agent)
    if facts is None or facts.version is None:
        return step
    return step.model_copy(update={"version": facts.version.digest, "label": facts.version.label})


def _page(
    name: str,
    read: Callable[[int, int, int], Sequence[BaseModel]],
    first: int,
    count: int,
    earlier: EarlierPart | None,
    since: int,
    limit: int,
) -> dict[str, Any]:
    """A page of a query's answer. `next` is where the next page begins, null at the end.

    Args:
        name: What the items are called in the answer.
        read: Returns at most `limit` items from `since` on, of at most so many bytes.
        first: The number of the first item that this run has.
        count: How many it has.
        earlier: The run that has those before `first`. A page of them is empty, and names that run.
        since: The number of the first item that was asked for.
        limit: The maximum number of items.
    """
    since, total = max(0, since), first + count
    if earlier and since < first:
        return {name: [], "next": first, "total": total, "earlier": earlier.place}
    items = [item.model_dump(mode="json") for item in read(since, max(1, limit), limits.PAGE_BYTES)]
    end = since + len(items)
    return {name: items, "next": end if end < total else None, "total": total}
