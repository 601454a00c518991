"""The calls of an agent's tools with `once` that later calls are compared with. It is pure: it schedules nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from mulligan.once import EXCERPT_CHARS, MOST_CALLS, Once, OnceCall
from mulligan.values import ToolMessage
from mulligan.wire.start_input import StartInput
from mulligan.workflows import limits
from mulligan.workflows.conversation.conversation import Conversation


class OnceCalls:
    """The newest calls of one conversation that have succeeded, run, or may have done their work; the oldest is first."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._calls: list[OnceCall] = []
        self._former: list[OnceCall] = []
        """Calls of former turns, which count only in a fork that begins in one of these."""

    def begin_turn(self, run_input: StartInput, before: str) -> StartInput:
        """Take over the calls of the run that a turn resumes, or was forked from. Returns the turn's input without them.

        `before`: the status of the turn before. If it has completed, only calls of the conversation stay.
        """
        if before == "completed":
            until = {"until": self._conversation.next_step}
            self._former += [call.model_copy(update=until) for call in self._calls if call.once is True]
            self._keep("conversation")
            self._forget_oldest()
        self._calls += run_input.carried.once
        return run_input.with_fields(once=[])

    def begin_step(self) -> None:
        """Remove the calls that only calls of their own step are compared with."""
        self._keep(True, "conversation")

    def _keep(self, *scopes: Once) -> None:
        self._calls = [call for call in self._calls if call.once in scopes]

    def add(self, call: OnceCall) -> None:
        """Add a call, in place of the oldest one if there are too many."""
        self._calls.append(call)
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        del self._calls[:-MOST_CALLS]
        del self._former[: max(0, len(self._former) + len(self._calls) - MOST_CALLS)]

    def remove(self, call: OnceCall) -> None:
        """Remove a call that has failed: it may be repeated."""
        self._calls = [each for each in self._calls if each is not call]

    def succeeded(self, digests: Sequence[str]) -> OnceCall | None:
        """The newest call with one of the digests that has succeeded."""
        return next(
            (
                call
                for call in reversed(self._calls)
                if call.has_succeeded and not set(digests).isdisjoint(call.digests)
            ),
            None,
        )

    def uncertain(self, executed: str) -> OnceCall | None:
        """The newest call that was executed with the arguments of this digest and may have done its work.

        The model's own arguments do not count: after an edit they are those of different work, which needs another key.
        """
        return next(
            (call for call in reversed(self._calls) if not call.has_succeeded and call.executed == executed), None
        )

    def unfinished(self, call_id: str) -> OnceCall | None:
        """A call that began in an earlier workflow run and has no result."""
        return next(
            (call for call in reversed(self._calls) if call.call_id == call_id and not call.has_succeeded), None
        )

    def excerpt(self, call: OnceCall) -> tuple[str | None, bool]:
        """The beginning of a call's result, and whether that is not all of it. None: the result is no longer there."""
        return _excerpt(call, None if call.text is not None else self._conversation.result_of(call.call_id))

    def for_resume(self, status: str) -> list[OnceCall]:
        """The calls that a run which resumes this one gets. `status`: this one's."""
        return self._carried(self._calls, "conversation", *(() if status == "completed" else (True,)))

    def for_fork(self, step: int, later: Collection[str]) -> list[OnceCall]:
        """The calls that a fork of this run gets which begins at a step: those that counted then.

        `later`: the ids of the calls that it does not share.
        """
        former = [call.model_copy(update={"until": None}) for call in self._former if (call.until or 0) > step]
        shared = [call for call in (*former, *self._calls) if call.call_id not in later]
        return self._carried(shared, True, "conversation")

    def dump(self) -> list[dict[str, Any]]:
        """What continue-as-new carries, as JSON."""
        carried = self._carried([*self._former, *self._calls], True, "step", "conversation")
        return [call.model_dump(mode="json") for call in carried]

    def _carried(self, calls: Sequence[OnceCall], *scopes: Once) -> list[OnceCall]:
        """Those of the calls whose tool's `once` is one of the scopes.

        The results whose messages are not carried are beside them, the newest first, as far as they fit.
        """
        calls = [call for call in calls if call.once in scopes]
        if not calls:
            return []
        messages, carried_results = self._conversation.results(), self._conversation.carried_results()
        left, carried = limits.ONCE_RESULTS_BYTES, []
        for call in reversed(calls):
            text, is_cut = None, False
            if left >= 0 and call.has_succeeded and call.call_id not in carried_results:
                text, is_cut = _excerpt(call, messages.get(call.call_id))
                left -= len((text or "").encode())
            result = {"text": text, "is_cut": is_cut} if left >= 0 else {"text": None, "is_cut": False}
            carried.append(call.model_copy(update=result))
        return carried[::-1]

    def load(self, state: Sequence[Any]) -> None:
        """Continue with what `dump` returned."""
        calls = [OnceCall.model_validate(call) for call in state]
        self._former = [call for call in calls if call.until is not None]
        self._calls = [call for call in calls if call.until is None]


def _excerpt(call: OnceCall, result: ToolMessage | None) -> tuple[str | None, bool]:
    if call.text is not None:
        return call.text, call.is_cut
    if result is None:
        return None, False
    text = result.text.encode(errors="replace")[:EXCERPT_CHARS].decode(errors="ignore")
    return text, len(text) < len(result.text)
