"""`mulligan content prune`: delete stored images and files that have not been used for a long time."""

from __future__ import annotations

from typing import Annotated

import typer

from mulligan.cli._terminal import AsJson, CommandApp, connect_or_fail, fail, print_json, print_line

content = CommandApp(help="The stored images and files of runs.", no_args_is_help=True)


@content.callback()
def _group() -> None:
    """The folder of MULLIGAN_EXTERNAL_STORAGE or MULLIGAN_CONTENT_DIR."""


@content.command()
async def prune(
    older_than: Annotated[
        str, typer.Option(metavar="DURATION", help="Since the last use: 12h, 30d.", show_default=False)
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Delete nothing; print what would be deleted.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also if runs that began earlier are open.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete images and files that no run has stored or read for so long. Their runs can then no longer be resumed.

    It refuses while a run that began earlier is open, because that may still need them. The folder must be that of the
    workers of this namespace, and of no other one.

    Example: `mulligan content prune --older-than 30d`

    Exit code: 0 deleted, 1 an older run is open or a file cannot be deleted, 2 wrong use.
    """
    from mulligan.client.prune_content import OpenRunsError, prune_content
    from mulligan.client.schedules import parse_interval
    from mulligan.client.stored_files import StorageError

    length = parse_interval(older_than, "--older-than")
    client = await connect_or_fail()
    try:
        pruned = await prune_content(client, length, dry_run=dry_run, force=force)
    except (OpenRunsError, StorageError) as error:
        fail(str(error), code=1)
    if as_json:
        print_json({"files": pruned.files, "bytes": pruned.bytes, "dry_run": dry_run})
    else:
        done = "would be deleted" if dry_run else "deleted"
        print_line(f"{pruned.files:,} {'file' if pruned.files == 1 else 'files'}, {pruned.bytes:,} bytes {done}")
