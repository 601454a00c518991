"""Checks the options of a tool that features add: what holds for each option class, also one of a third party."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue, TypeAdapter, ValidationError

from mulligan.features import FEATURES, option_classes
from mulligan.features.tool_option import ToolOption, is_role

if TYPE_CHECKING:
    from mulligan.agent import Agent
    from mulligan.tool import Tool

_JSON: TypeAdapter[JsonValue] = TypeAdapter(JsonValue)


def option_faults(tool: Tool) -> dict[str, bool]:
    """What may be wrong with the options of a tool, as the end of a sentence, and whether it is."""
    faults = {fault: True for fault in map(_of_class, tool.options) if fault} or _of_names(tool.options)
    if not any(faults.values()):
        for option in tool.options:
            faults |= _bools(option) | _own(option, tool)
    return faults if any(faults.values()) else faults | _together(tool)


def pin_fault(option: ToolOption, tool: Tool, agent: Agent) -> str:
    """Why what an option pins for a tool of an agent cannot be kept; "" if it can."""
    kind = type(option).__name__
    try:
        _JSON.validate_python(option.pin(tool, agent), strict=True)
    except ValidationError:
        return f"the option {kind} pins what is no JSON value"
    except Exception as error:  # noqa: BLE001 - users' code may raise anything
        return f"the option {kind} cannot be pinned: {type(error).__name__}: {error}"
    return ""


def _of_class(option: Any) -> str:
    """Why its class cannot be an option; "" if it can."""
    if not isinstance(option, ToolOption):
        return f"options must be ToolOptions, but has {option!r}"
    kind = type(option)
    if "__dataclass_fields__" not in vars(kind):
        return f"the class of the option {kind.__name__} is no dataclass; make it a frozen one"
    if missing := [each.name for each in fields(option) if each.default is MISSING and each.default_factory is MISSING]:
        return f"the field {missing[0]!r} of the option {kind.__name__} has no default; give it one"
    if option.name in FEATURES and option_classes().get(option.name) is not kind:
        return f"the option {kind.__name__} says that it is of Mulligan's own feature {option.name!r}; give it another name"
    return ""


def _of_names(options: tuple[ToolOption, ...]) -> dict[str, bool]:
    """What one option pins must not replace what another one does."""
    names = [each.name for each in options]
    twice = next((name for name in names if names.count(name) > 1), "")
    return {f"options has more than one of the feature {twice!r}; a tool may have one": bool(twice)}


def _bools(option: ToolOption) -> dict[str, bool]:
    return {
        f"{each.name} must be True or False, but is {value!r}": not isinstance(value, bool)
        for each in fields(option)
        if each.type in (bool, "bool") and (value := getattr(option, each.name)) is not each.default
    }


def _own(option: ToolOption, tool: Tool) -> dict[str, bool]:
    """What the option says itself; it may be a third party's, which raises."""
    try:
        faults = dict(option.faults(tool))
        if not any(faults.values()):
            vars(option.traits)
    except Exception as error:  # noqa: BLE001 - users' code may raise anything
        kind = type(option).__name__
        return {f"the option {kind} cannot be checked: {type(error).__name__}: {error}": True}
    return faults


def _together(tool: Tool) -> dict[str, bool]:
    """What the loop cannot do with what the options say together."""
    said = [
        name for each in tool.options for name in each.traits.given if name in ("policy", "time_elsewhere", "returns")
    ]
    traits, policy = tool.traits, tool.traits.policy
    is_policy = isinstance(policy, bool) or callable(policy) or (isinstance(policy, str) and is_role(policy))
    return {
        "two of its options say who is asked, or for how long, or what it returns; leave one out": len({*said})
        < len(said),
        (
            "policy must be True, False, the name of a role, or a function of (arguments, ToolContext), but is "
            f"{policy!r}"
        ): not is_policy,
        "a call that is a question to a person waits anyway, so nobody can be asked about it before": bool(
            traits.is_question and policy
        ),
        "a deferred tool starts something elsewhere: it cannot be local, isolated, or a question to a person": (
            traits.ends_elsewhere and (tool.local or tool.isolated or traits.is_question)
        ),
    }
