"""A conversation that lasts for weeks: each message is a turn, and it continues as new when its history is long."""

from __future__ import annotations

from temporalio import workflow

from mulligan import DurableAgent


@workflow.defn
class Chat:
    """Start it with `args=["assistant", [], [], b""]`; signal `say`; query `answers`."""

    def __init__(self) -> None:
        self._waiting: list[str] = []
        self._answers: list[str] = []

    @workflow.run
    async def run(self, agent: str, waiting: list[str], answers: list[str], state: bytes) -> None:
        """Take a turn for each message. All arguments but `agent` come from the previous run of this workflow."""
        self._waiting, self._answers = waiting + self._waiting, answers
        durable = DurableAgent(agent, state=state)
        while not durable.is_continue_as_new_suggested():
            await workflow.wait_condition(lambda: bool(self._waiting))
            result = await durable.run(self._waiting.pop(0))
            self._answers.append(result.output)
        workflow.continue_as_new(args=[agent, self._waiting, self._answers[-100:], durable.carry()])

    @workflow.signal
    def say(self, text: str) -> None:
        """Add a message."""
        self._waiting.append(text)

    @workflow.query
    def answers(self) -> list[str]:
        """The agent's answers: the last hundred, at least."""
        return self._answers
