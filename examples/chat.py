"""A conversation that goes on for weeks: each message is a turn, and the workflow goes on in a fresh history by itself."""

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
        """Take a turn for each message. All but `agent` is what the workflow run before handed over."""
        self._waiting, self._answers = waiting + self._waiting, answers
        durable = DurableAgent(agent, state=state)
        while not durable.is_continue_as_new_suggested():
            await workflow.wait_condition(lambda: bool(self._waiting))
            result = await durable.run(self._waiting.pop(0))
            self._answers.append(result.output)
        workflow.continue_as_new(args=[agent, self._waiting, self._answers[-100:], durable.carry()])

    @workflow.signal
    def say(self, text: str) -> None:
        """A message."""
        self._waiting.append(text)

    @workflow.query
    def answers(self) -> list[str]:
        """What was answered: the last hundred, at least."""
        return self._answers
