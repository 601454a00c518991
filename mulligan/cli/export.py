"""`mulligan export`: print a run that has ended as a case."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mulligan.cli._forks import RunId
from mulligan.cli._people import Conversation
from mulligan.cli._terminal import connect_or_fail, fail, print_progress
from mulligan.schema.printable import json_page

if TYPE_CHECKING:
    from mulligan.client.content_store import ContentStore
    from mulligan.wire.case import Case


async def export(
    run_id: RunId,
    content: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Copy the stored images and files that it refers to into this folder, a MULLIGAN_CONTENT_DIR.",
            show_default=False,
        ),
    ] = None,
    conversation: Conversation = None,
) -> None:
    """Print a run that has ended as a case: a JSON file for `mulligan.testing.replay` (docs/cases.md).

    The case has what the run was asked, the definition of its agent, its messages with all results, and its output: look
    through it before others read it.

    Example: `mulligan export my-run > case.json`

    Exit code: 0 printed, 2 there is no such run, it is open, or it cannot be read.
    """
    from mulligan.client.export_case import export_case

    client = await connect_or_fail()
    case = await export_case(client, run_id, conversation)
    if content is not None:
        await _copy(case, content)
    sys.stdout.write(json_page(case.model_dump(mode="json")) + "\n")


async def _copy(case: Case, folder: Path) -> None:
    from mulligan.client.content_store import ChangedContentError, configured_content_store
    from mulligan.client.export_case import copy_content
    from mulligan.client.stored_files import StorageError

    source = configured_content_store()
    if source is None:
        fail("--content: no content storage is configured; set MULLIGAN_CONTENT_DIR, or MULLIGAN_EXTERNAL_STORAGE.")
    try:
        copied = await copy_content(case, source, _store(folder))
    except (StorageError, ChangedContentError) as error:
        fail(f"--content: {error}")
    print_progress(f"{copied} stored files were copied to {folder}.")


def _store(folder: Path) -> ContentStore:
    from mulligan.client.content_store import ContentStore
    from mulligan.client.stored_files import StoredFiles

    if not (parent := folder.absolute().parent).is_dir():
        fail(f"--content: there is no folder {parent} to create it in.")
    return ContentStore(StoredFiles(folder, "content", creates_folder=True))
