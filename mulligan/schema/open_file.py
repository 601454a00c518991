"""Files that others have written: opened without waiting for anybody, and read as far as is allowed."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_file(path: Path) -> BinaryIO:
    """Open a regular file to read its bytes.

    A pipe is not waited for until somebody writes to it, and no descriptor of a folder stays open.

    Raises:
        OSError: it is not there, may not be read, or is a folder, a pipe or a device.
    """
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115 - returned
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return file


def read_bytes(path: Path, most: int) -> bytes:
    """The bytes of a regular file, of which there is at most one more than `most`, however it grows.

    Raises:
        OSError: as `open_file`.
    """
    with open_file(path) as file:
        return file.read(most + 1) or b""  # None: a file of the kernel's that has nothing yet


def state_of(path: Path) -> tuple[int, int, int, int]:
    """What changes as a file does: its number, its size, and when its bytes and its place were changed, in nanoseconds.

    Raises:
        OSError: it is not there.
    """
    state = os.stat(path)
    return (state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
