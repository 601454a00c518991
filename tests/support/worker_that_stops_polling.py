"""`worker.py` whose workers stop polling at SIGUSR1 without an error, as after a panic in the SDK core. Polls are checked often."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any, ClassVar

import temporalio.worker

from mulligan.cli.app import main
from mulligan.worker import activity_workers, poll_monitor, wiring


class Deaf(temporalio.worker.Worker):
    """`run()` goes on, and `is_running` stays true."""

    all: ClassVar[list[Deaf]] = []

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.all.append(self)
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, stop_polling)


def stop_polling() -> None:
    """Of all task queues of this process."""
    for worker in Deaf.all:
        worker._bridge_worker.initiate_shutdown()


if __name__ == "__main__":
    wiring.Worker = activity_workers.Worker = Deaf  # type: ignore[attr-defined]
    poll_monitor.SECONDS_BETWEEN_CHECKS = 1
    sys.argv[1:1] = ["worker"]
    main()
