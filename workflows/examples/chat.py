"""A conversation that goes on for weeks: each message is a turn, and the workflow goes on in a fresh history by itself."""

from __future__ import annotations

from temporalio import workflow

from mulligan import DurableAgent


@workflow.defn
class Chat:
    """Start it with `args=["assistant", [], b""]`; signal `say`; query `answers`."""

    def __init__(self) -> None:
        self._waiting: list[str] = []
        self._answers: list[str] = []

    @workflow.run
    async def run(self, agent: str, waiting: list[str], state: bytes) -> None:
        """Take a turn for each message. `waiting` and `state` are what the workflow run before handed over."""
        self._waiting = waiting + self._waiting
        durable = DurableAgent(agent, state=state)
        while not durable.is_continue_as_new_suggested():
            await workflow.wait_condition(lambda: bool(self._waiting))
            result = await durable.run(self._waiting.pop(0))
            self._answers.append(result.output)
        workflow.continue_as_new(args=[agent, self._waiting, durable.carry()])

    @workflow.signal
    def say(self, text: str) -> None:
        """A message."""
        self._waiting.append(text)

    @workflow.query
    def answers(self) -> list[str]:
        """What was answered since this workflow run began."""
        return self._answers
