"""The shipped tools. Those for files see one folder, the workspace, and nothing else."""

from mulligan.tools.ask_person import ask_person
from mulligan.tools.fetch_page import fetch_page
from mulligan.tools.list_files import list_files
from mulligan.tools.query_sqlite import query_sqlite
from mulligan.tools.read_file import read_file
from mulligan.tools.read_section import read_section
from mulligan.tools.search_files import search_files
from mulligan.tools.write_file import write_file

__all__ = [
    "ask_person",
    "fetch_page",
    "list_files",
    "query_sqlite",
    "read_file",
    "read_section",
    "search_files",
    "write_file",
]
