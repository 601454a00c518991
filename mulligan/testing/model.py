"""A scripted model for tests: its answers, turn by turn, and the messages that it got."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mulligan.script import Say, Script
from mulligan.values import AssistantMessage, Message

Turn = Say | str | Callable[[Sequence[Message]], Say | str]


class ScriptedModel(Script):
    """A `Script` that records the messages that it got, and fails the test if they differ from what the test expects.

    A turn is a `Say`, a text, or a function of the whole conversation that returns one of them (and may assert). The test
    fails if an assertion in a turn fails, or if the model is called more or less often than it has turns. A model takes
    part in one conversation at a time; the next run can use it again.

    Args:
        turns: The answers, in order.
        name: The model's name: runs use it as `scripted:NAME`.
        is_strict: Whether unused turns fail the test.
    """

    told: list[list[Message]]
    """The new messages before each of its turns: first the prompt, later tool results and other feedback."""

    def __init__(self, *turns: Turn, name: str = "test", is_strict: bool = True) -> None:
        super().__init__(name, [_turn(turn) for turn in turns])
        object.__setattr__(self, "is_strict", is_strict)
        self.begin()

    def begin(self) -> None:
        """Forget the messages of the run before."""
        object.__setattr__(self, "told", [])
        object.__setattr__(self, "failure", None)

    def answer(self, messages: Sequence[Message], summarized_answers: int = 0) -> Say:
        """The answer to this conversation."""
        answers = [index for index, message in enumerate(messages) if isinstance(message, AssistantMessage)]
        nth = summarized_answers + len(answers)
        new = list(messages[answers[-1] + 1 :] if answers else messages)
        del self.told[nth:]  # a retried attempt gets the same answer
        self.told.append(new)
        try:
            if nth >= len(self.turns):
                raise AssertionError(
                    f"{self!r} has {len(self.turns)} turns, but was called once more, with: {_texts(new)}"
                )
            turn = self.turns[nth]
            return turn if isinstance(turn, Say) else turn(messages)
        except BaseException as error:
            # Keep the first error: later ones may be caused by it.
            if vars(self)["failure"] is None:
                object.__setattr__(self, "failure", error)
            raise

    def check_turns(self) -> None:
        """Raise the error that one of its turns raised. In the run it became the text of a ModelRequestError.

        Raises:
            BaseException: whatever a turn's function raised.
        """
        failure: BaseException | None = vars(self)["failure"]
        if failure is not None:
            raise failure from None

    def check(self, ended: str = "", because: BaseException | None = None) -> None:
        """Fail the test if one of its turns raised an error, or if turns were not used.

        Args:
            ended: How the run ended. It is in the message about unused turns, as it is their cause.
            because: The error that the run ended with.

        Raises:
            AssertionError: turns were not used. Errors of a turn's function are raised as they are.
        """
        self.check_turns()
        unused = len(self.turns) - len(self.told)
        if vars(self)["is_strict"] and unused > 0:
            raise AssertionError(
                f"{self!r} has {len(self.turns)} turns, but {unused} of them were not used{ended and ': '}{ended}."
            ) from because

    def __repr__(self) -> str:
        return f"ScriptedModel({self.name!r})"


def when_told(text: str, then: Say | str) -> Callable[[Sequence[Message]], Say]:
    """A turn that asserts that the messages since the last answer contain `text`, and answers with `then`."""
    answer = Say(then) if isinstance(then, str) else then

    def turn(messages: Sequence[Message]) -> Say:
        last = max((n for n, message in enumerate(messages) if isinstance(message, AssistantMessage)), default=-1)
        new = _texts(messages[last + 1 :])
        assert text in new, f"The model should get {text!r}, but it got: {new}"
        return answer

    return turn


def _turn(turn: Turn) -> Say | Callable[[Sequence[Message]], Say]:
    if not callable(turn):
        return Say(turn) if isinstance(turn, str) else turn

    def checked(messages: Sequence[Message]) -> Say:
        answer = turn(messages)
        if not isinstance(answer, Say | str):  # for example a function that asserts, but returns nothing
            name = getattr(turn, "__name__", repr(turn))
            raise TypeError(f"The turn {name} returned {answer!r}; a turn returns a Say or a text.")
        return Say(answer) if isinstance(answer, str) else answer

    return checked


def _texts(messages: Sequence[Any]) -> str:
    return "\n".join(message.text for message in messages)
