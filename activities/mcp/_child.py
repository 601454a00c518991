"""A program that becomes an MCP server, and is killed when its worker's process ends, even by SIGKILL.

A server should end when its stdin is closed, but one that is busy may not notice. Only Linux offers such a signal; on other
systems the server's command is run directly. It imports nothing of Mulligan, so that it starts fast.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(worker: int, command: list[str]) -> None:
    """Ask the kernel for SIGKILL when the worker's process ends, and replace this process with the command."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != worker:
        sys.exit("the worker has ended")
    os.execvp(command[0], command)  # noqa: S606 - what the agent declares


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
