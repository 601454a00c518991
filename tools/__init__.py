"""The shipped tools. Those for files can access one folder, the workspace, and nothing else."""

from typing import TYPE_CHECKING, Any

from mulligan.tools.ask_person import ask_person
from mulligan.tools.list_files import list_files
from mulligan.tools.query_sqlite import query_sqlite
from mulligan.tools.read_file import read_file
from mulligan.tools.read_section import read_section
from mulligan.tools.search_files import search_files
from mulligan.tools.wait_until import wait_until
from mulligan.tools.write_file import write_file

if TYPE_CHECKING:
    from mulligan.tools.fetch_page import fetch_page

__all__ = [
    "ask_person",
    "fetch_page",
    "list_files",
    "query_sqlite",
    "read_file",
    "read_section",
    "search_files",
    "wait_until",
    "write_file",
]


def __getattr__(name: str) -> Any:
    """Import `fetch_page` at its first use: it needs the extra `web`, and the other tools do not."""
    if name != "fetch_page":
        raise AttributeError(f"module 'mulligan.tools' has no attribute {name!r}")
    from mulligan.tools.fetch_page import fetch_page

    # Python has bound the name to the submodule.
    globals()[name] = fetch_page
    return fetch_page
