"""The rules of a run, or of a tenant, by their keys."""

from __future__ import annotations

from collections.abc import Iterable

from mulligan.wire.approval_rules import RULE_BYTES, Rule


class RuleBook:
    """Rules, the oldest first.

    Args:
        most: How many there may be.
        most_bytes: UTF-8 bytes of all of them as JSON.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._rules: dict[str, Rule] = {}

    @property
    def rules(self) -> list[Rule]:
        """All of them."""
        return list(self._rules.values())

    def find(self, keys: Iterable[str]) -> Rule | None:
        """The rule with one of the keys; None if there is none."""
        return next((self._rules[key] for key in keys if key in self._rules), None)

    def refusal(self, rule: Rule) -> str | None:
        """Why a rule cannot be added: a sentence. None: it can. One with the same key would take its place."""
        if (size := len(rule.model_dump_json(include={"arguments"}).encode())) > RULE_BYTES:
            return (
                f"A rule has room for {RULE_BYTES:,} bytes of arguments, and these have {size:,}. Approve the call alone, "
                "without a rule."
            )
        others = [each for each in self._rules.values() if each.key != rule.key]
        written = sum(len(each.model_dump_json().encode()) for each in (*others, rule))
        if len(others) >= self._most or written > self._most_bytes:
            return f"There are {len(others):,} rules, and no room for another one. Delete some (`mulligan rules`)."
        return None

    def add(self, rule: Rule) -> str | None:
        """Add a rule, unless there is a `refusal`, which is returned."""
        if (refusal := self.refusal(rule)) is None:
            self._rules[rule.key] = rule
        return refusal

    def delete(self, name: str) -> bool:
        """Delete the rules of a name. Returns whether there were any."""
        left = {key: rule for key, rule in self._rules.items() if rule.name != name}
        is_known, self._rules = len(left) < len(self._rules), left
        return is_known
