"""The folder of the sockets of the live channel: where it is, and whether it may be used.

Who can write into it could read what all tenants' models write. So it is the user's own, closed to others, and no link.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

SUFFIX = ".sock"
MOST_PATH_BYTES = 103
"""Of a socket's path, with the zero at its end 104: the least that systems have."""
_NAME_BYTES = len("/4194304-01234567.sock")
"""Of the longest name of a socket: the highest process id of Linux and eight digits."""


class UnusableFolderError(Exception):
    """A folder cannot be used for sockets. The text says why."""


def socket_folder(environ: Mapping[str, str]) -> Path:
    """The folder for the sockets of this user, on this machine."""
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime):
        return Path(runtime) / "mulligan"
    return Path(tempfile.gettempdir()) / f"mulligan-{os.getuid()}"


def check_folder(folder: Path, *, create: bool = False) -> None:
    """Check the folder, and close it to others. `create`: make it if there is none.

    Raises:
        UnusableFolderError: it belongs to somebody else, is no folder, or has too long a path.
        FileNotFoundError: there is none.
    """
    if len(os.fsencode(folder)) + _NAME_BYTES > MOST_PATH_BYTES:
        raise UnusableFolderError(f"its path has too many characters for a socket: {folder}")
    try:
        if create:
            folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise UnusableFolderError(f"{folder} is {'a link' if stat.S_ISLNK(found.st_mode) else 'no folder'}")
        if found.st_uid != os.getuid():
            raise UnusableFolderError(f"{folder} belongs to another user")
        if stat.S_IMODE(found.st_mode) != 0o700:
            folder.chmod(0o700)
    except FileExistsError:
        raise UnusableFolderError(f"{folder} is no folder") from None
    except FileNotFoundError:
        if create:
            raise UnusableFolderError(f"{folder.parent} does not exist") from None
        raise
    except OSError as error:
        raise UnusableFolderError(f"{folder}: {error.strerror}") from None
