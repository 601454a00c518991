"""A message of the AI SDK, made of the chunks of its stream as `useChat` makes it."""

from __future__ import annotations

import json
from typing import Any

Json = dict[str, Any]
MOST_MESSAGE_CHARS = 4_000_000
"""Of the chunks of one message. The oldest steps of a longer one are left out."""
_STATES = {
    "tool-input-available": "input-available",
    "tool-input-error": "output-error",
    "tool-approval-request": "approval-requested",
    "tool-approval-response": "approval-responded",
    "tool-output-available": "output-available",
    "tool-output-error": "output-error",
    "tool-output-denied": "output-denied",
}
"""The state of a call's part after a chunk."""
_FIELDS = ("input", "output", "errorText", "providerExecuted", "toolMetadata")


class UIMessage:
    """A message of the assistant, while chunks are added to it."""

    def __init__(self, message_id: str) -> None:
        self._id = message_id
        self._steps: list[list[Json]] = [[]]
        """The parts of each step; the first ones are before any step."""
        self._sizes = [0]
        """About how many characters each step has."""
        self._texts: dict[str, Json] = {}
        """The text parts that are open."""

    def to_json(self) -> Json:
        """The message."""
        return {"id": self._id, "role": "assistant", "parts": [part for step in self._steps for part in step]}

    @property
    def size(self) -> int:
        """About how many characters it has."""
        return sum(self._sizes)

    def add(self, chunk: Json) -> None:
        """Add a chunk. Those that say only how the stream goes on change nothing."""
        kind: str = chunk["type"]
        self._sizes[-1] += len(json.dumps(chunk, ensure_ascii=False))
        match kind:
            case "start-step":
                self._begin_step()
            case "reset-step":
                self._steps[-1] = [part for part in self._steps[-1] if part["type"] == "step-start"]
                self._texts.clear()
            case "text-start":
                part = {"type": "text", "text": "", "state": "streaming"}
                self._texts[chunk["id"]] = part
                self._steps[-1].append(part)
            case "text-delta":
                self._texts[chunk["id"]]["text"] += chunk["delta"]
            case "text-end":
                self._texts.pop(chunk["id"])["state"] = "done"
            case "steering-message" | "source-url" | "file":
                self._steps[-1].append(chunk)
            case _ if kind.startswith("data-"):
                if not chunk.get("transient"):
                    self._steps[-1].append(chunk)
            case _ if kind.startswith("tool-"):
                self._add_to_call(chunk, kind)

    def _begin_step(self) -> None:
        self._steps.append([{"type": "step-start"}])
        self._sizes.append(0)
        while self.size > MOST_MESSAGE_CHARS and len(self._steps) > 1:
            del self._steps[0], self._sizes[0]

    def _add_to_call(self, chunk: Json, kind: str) -> None:
        part = self._part_of(chunk)
        match kind:
            case "tool-input-start":
                part["state"] = "input-streaming"
            case "tool-input-delta":
                part["rawInput"] = part.get("rawInput", "") + chunk["inputTextDelta"]
            case _:
                part["state"] = _STATES[kind]
                part |= {name: chunk[name] for name in _FIELDS if name in chunk}
                part.pop("rawInput", None)
        if kind == "tool-approval-request":
            part["approval"] = {"id": chunk["approvalId"]}
        elif kind == "tool-approval-response":
            part["approval"] |= {name: chunk[name] for name in ("approved", "reason") if name in chunk}

    def _part_of(self, chunk: Json) -> Json:
        """The part of a call, which is added where there is none. Models use the ids of calls again in later steps."""
        named = chunk.get("toolCallId"), chunk.get("approvalId")
        steps = self._steps[-1:] if "toolName" in chunk else reversed(self._steps)
        for part in (part for step in steps for part in step if "toolCallId" in part):
            if part["toolCallId"] == named[0] or (named[0] is None and part.get("approval", {}).get("id") == named[1]):
                return part
        part = {"type": f"tool-{chunk.get('toolName', 'unknown')}", "toolCallId": named[0]}
        self._steps[-1].append(part)
        return part
