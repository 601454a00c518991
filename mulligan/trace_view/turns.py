"""The turns of a chain of workflow runs, by what history tells of them."""

from __future__ import annotations

from mulligan.wire.agent_facts import AgentFacts


class Turns:
    """The turns of the chain by their trace: `finish_run` does not say in history whose it is."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.outputs: dict[str, str] = {}
        self.sub_agents: dict[str, set[str]] = {}
        """Names of tools whose calls are runs of their own."""
        self._seen: dict[str, int] = {}
        self._looks = 0

    def opened(self, trace: str, number: int, facts: AgentFacts) -> None:
        """A turn has begun."""
        self.numbers[trace] = number
        self.outputs[trace] = facts.definition.output.name if facts.definition.output else ""
        self.sub_agents[trace] = {name for name, tool in facts.tools.items() if tool.agent is not None}
        self.see(trace)

    def see(self, trace: str) -> None:
        """Something of this turn came next."""
        self._looks += 1
        self._seen[trace] = self._looks

    def finish(self) -> str | None:
        """The turn that ends now: the open one that was seen last."""
        trace = max(self._seen, key=lambda seen: self._seen[seen], default=None)
        if trace is not None:
            del self._seen[trace]
        return trace
