"""Run as a program, with no import of ours: it becomes an MCP server that ends with its worker, though that is killed.

A server should end as its stdin does; one that is busy, or deaf, does not look. Linux alone can tell it; elsewhere the
command runs as it is.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(worker: int, command: list[str]) -> None:
    """Ask to be killed when the worker's process ends, and become the command."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != worker:
        sys.exit("the worker has ended")
    os.execvp(command[0], command)  # noqa: S606 - what the agent declares


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
