"""`mulligan rules`: the rules by which calls are approved without a person, and how to delete one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from mulligan.cli._people import By, user_name
from mulligan.cli._print_rows import print_rows
from mulligan.cli._runs import is_open_run
from mulligan.cli._terminal import OK, WRONG_USE, AsJson, connect_or_fail, fail, print_json, print_line, print_progress
from mulligan.schema.printable import json_line, printable

if TYPE_CHECKING:
    from temporalio.client import Client

    from mulligan.client.rules import RuleList
    from mulligan.wire.approval_rules import ShownRule

HEADINGS = ("rule", "for", "agent", "since (UTC)", "by", "approves")


async def rules(
    run_id: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="The id of an open run: its own rules alone.", show_default=False),
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="The rules of one tenant.", show_default=False)] = None,
    delete: Annotated[
        str | None, typer.Option(metavar="NAME", help="Delete the rule of that name.", show_default=False)
    ] = None,
    by: By = None,
    as_json: AsJson = False,
) -> int:
    """List the rules that `mulligan approve --remember` has made: of all tenants and open runs. Or delete one, which acts at
    once.

    Examples: `mulligan rules`, `mulligan rules my-run`, `mulligan rules --delete pay-1f0c9a2b`

    Exit code: 0, also if there are none; 2 no such rule or run, no server, or no worker of one that may have rules answers.
    """
    client = await connect_or_fail()
    all_rules = await _read(client, run_id, tenant)
    _print_gaps(all_rules)
    if delete is not None:
        return await _delete(client, all_rules, delete, by, as_json=as_json)
    if as_json:
        print_json([each.model_dump(mode="json", by_alias=True) for each in all_rules.rules])
    elif not all_rules.rules:
        print_progress("no rules were found." if all_rules.may_have_others else "there are no rules.")
    else:
        print_rows(HEADINGS, [_cells(each) for each in all_rules.rules], [None for _ in all_rules.rules])
    return WRONG_USE if all_rules.unread else OK


def _print_gaps(all_rules: RuleList) -> None:
    """Print what may have rules that are not shown."""
    from mulligan.cli._steps import counted

    for workflow_id, reason in all_rules.unread.items():
        print_progress(printable(f"{workflow_id} may have rules, but does not answer: {reason}"))
    if all_rules.encrypted:
        may_have = f"{counted(all_rules.encrypted, 'open run')} may have rules"
        print_progress(f"{may_have}: encrypted with keys that MULLIGAN_ENCRYPTION_KEYS does not have.")
    if not all_rules.complete:
        print_progress("there are more open workflows than are asked for their rules; name a run or a tenant.")


async def _read(client: Client, run_id: str | None, tenant: str | None) -> RuleList:
    from temporalio.service import RPCError

    from mulligan.client.rules import RuleList, read_rules

    if run_id is not None and not await is_open_run(client, run_id) and tenant is None:
        return RuleList()
    try:
        return await read_rules(client, tenant=tenant, run_id=run_id)
    except RPCError as error:
        fail(f"Temporal could not list the rules: {error.message}")


async def _delete(client: Client, all_rules: RuleList, name: str, by: str | None, *, as_json: bool) -> int:
    from mulligan.client.rules import delete_rule
    from mulligan.client.send_update import UpdateTimeoutError
    from mulligan.errors import UpdateRefusedError

    named = [each for each in all_rules.rules if each.name == name]
    if not named:
        known = ", ".join(dict.fromkeys(each.name for each in all_rules.rules)) or "none"
        if all_rules.may_have_others:
            fail(f"no rule {name!r} was found, but not everything that may have rules could be read; found: {known}.")
        fail(f"there is no rule {name!r}; rules: {known}.")
    if len(named) > 1:
        places = ", ".join(each.tenant or each.run or "" for each in named)
        fail(f"several have a rule {name!r}; name the run, or --tenant: {places}.")
    try:
        await delete_rule(client, named[0], by or user_name())
    except UpdateRefusedError as error:
        fail(error.message)
    except UpdateTimeoutError as error:
        fail(f"the rule may not have been deleted: {error}")
    if as_json:
        print_json({"deleted": name})
    else:
        print_line(printable(f"The rule {name} is deleted."))
    return OK


def _cells(rule: ShownRule) -> list[Text]:
    """The cells of a rule, in the order of `HEADINGS`."""
    from mulligan.cli._steps import short

    place = f"tenant {rule.tenant}" if rule.tenant is not None else f"run {rule.run}"
    place += f", user {rule.user}" if rule.user is not None else ""
    call = f"{rule.tool} {json_line(rule.arguments)}"
    return [
        Text(printable(rule.name)),
        Text(short(place)),
        Text(short(rule.agent)),
        Text(rule.at[5:16].replace("T", " ")),
        Text(short(rule.by or "")),
        Text(short(call), style="yellow"),
    ]


COMMANDS = (rules,)
