"""A scripted model for tests: what it says, turn by turn, and what it was told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mulligan.script import Say, Script
from mulligan.values import AssistantMessage, Message

__all__ = ["Model", "when_told"]

Turn = Say | str | Callable[[Sequence[Message]], Say | str]


class Model(Script):
    """A `Script` that remembers what it was told, and does not forgive a test that expects something else.

    A turn is a `Say`, a text, or a function of the whole conversation that gives one of them (and may assert). An assertion
    that fails there fails the test, as does a model that is asked more often than it has turns, or less. One model speaks in
    one conversation at a time; it may be used again, for the next run.

    Args:
        turns: What it says.
        name: Runs ask for it as `scripted:NAME`.
        is_strict: Whether turns that were not used up fail the test.
    """

    told: list[list[Message]]
    """What was new before each of its turns: the prompt, then results of tools and what else it was told."""

    def __init__(self, *turns: Turn, name: str = "test", is_strict: bool = True) -> None:
        super().__init__(name, [_turn(turn) for turn in turns])
        object.__setattr__(self, "is_strict", is_strict)
        self.begin()

    def begin(self) -> None:
        """Forget what the run before told it."""
        object.__setattr__(self, "told", [])
        object.__setattr__(self, "failure", None)

    def answer(self, messages: Sequence[Message], summed_up: int = 0) -> Say:
        """What it says to this conversation."""
        spoken = [index for index, message in enumerate(messages) if isinstance(message, AssistantMessage)]
        nth = summed_up + len(spoken)
        new = list(messages[spoken[-1] + 1 :] if spoken else messages)
        del self.told[nth:]  # an attempt that is tried again says the same
        self.told.append(new)
        try:
            if nth >= len(self.turns):
                raise AssertionError(
                    f"{self!r} has {len(self.turns)} turns, but was asked once more; it was told: {_texts(new)}"
                )
            turn = self.turns[nth]
            return turn if isinstance(turn, Say) else turn(messages)
        except BaseException as error:
            # The first one: what comes after it may come of it.
            if vars(self)["failure"] is None:
                object.__setattr__(self, "failure", error)
            raise

    def check_turns(self) -> None:
        """Raise what one of its turns raised: an activity made the text of a ModelRequestError of it.

        Raises:
            BaseException: whatever a turn's function raised.
        """
        failure: BaseException | None = vars(self)["failure"]
        if failure is not None:
            raise failure from None

    def check(self, ended: str = "", because: BaseException | None = None) -> None:
        """Fail as the test should: by what one of its turns raised, or since turns are left over.

        Args:
            ended: How the run ended: said of turns that are left over, as it is why they are.
            because: The error that it ended with.

        Raises:
            AssertionError: and whatever a turn's function raised.
        """
        self.check_turns()
        left = len(self.turns) - len(self.told)
        if vars(self)["is_strict"] and left > 0:
            raise AssertionError(
                f"{self!r} has {len(self.turns)} turns, but {left} of them were not asked for{ended and ': '}{ended}."
            ) from because

    def __repr__(self) -> str:
        return f"Model({self.name!r})"


def when_told(text: str, then: Say | str) -> Callable[[Sequence[Message]], Say]:
    """A turn: what the model was told since it last spoke holds that text; then it says this."""
    said = Say(then) if isinstance(then, str) else then

    def turn(messages: Sequence[Message]) -> Say:
        last = max((n for n, message in enumerate(messages) if isinstance(message, AssistantMessage)), default=-1)
        told = _texts(messages[last + 1 :])
        assert text in told, f"The model was to be told {text!r}, but was told: {told}"
        return said

    return turn


def _turn(turn: Turn) -> Say | Callable[[Sequence[Message]], Say]:
    if not callable(turn):
        return Say(turn) if isinstance(turn, str) else turn

    def checked(messages: Sequence[Message]) -> Say:
        said = turn(messages)
        if not isinstance(said, Say | str):  # a function that asserts, and then forgets to answer
            name = getattr(turn, "__name__", repr(turn))
            raise TypeError(f"The turn {name} gave {said!r}; a turn gives a Say, or a text.")
        return Say(said) if isinstance(said, str) else said

    return checked


def _texts(messages: Sequence[Any]) -> str:
    return "\n".join(message.text for message in messages)
