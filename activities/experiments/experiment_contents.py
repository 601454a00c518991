"""The contents of experiments, of which this worker has read the newest."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from temporalio import activity

from mulligan.client.experiments.experiment_content import ExperimentError, read_content
from mulligan.wire.case import Case
from mulligan.wire.experiments import ExperimentContent, Line, RowRequest

MOST_CONTENTS = 4


@dataclass(frozen=True)
class RowSource:
    """What a row begins with, and the id of its run.

    `source`: the id of a run, a case, or a line. `repetition`: which of the runs from the same source it is, from 1.
    `version`: of the agent; None: none is named.
    """

    content: ExperimentContent
    source: str | Case | Line
    repetition: int
    new_id: str
    version: str | None = None

    @property
    def id(self) -> str:
        """Its name in the table."""
        return self.source if isinstance(self.source, str) else self.source.id


class ExperimentContents:
    """Reads the content of an experiment once, as far as it is remembered."""

    def __init__(self) -> None:
        self._contents: OrderedDict[tuple[str, str], ExperimentContent] = OrderedDict()
        self._lock = asyncio.Lock()

    async def source(self, request: RowRequest) -> RowSource:
        """The source of a row.

        Raises:
            ExperimentError: the content cannot be read, or has no such row.
            RPCError: Temporal does not answer.
        """
        content = await self._read(request.workflow_id, request.first_run_id)
        index, repetition = divmod(request.number // (len(request.versions) or 1), content.repeat)
        sources = content.sources
        if index >= len(sources):
            raise ExperimentError(f"The experiment has no row {request.number + 1}.")
        new_id = f"{request.name}-{request.number + 1}"
        return RowSource(content, sources[index], repetition + 1, new_id, request.version)

    async def _read(self, workflow_id: str, first_run_id: str) -> ExperimentContent:
        key = (workflow_id, first_run_id)
        async with self._lock:
            if key not in self._contents:
                self._contents[key] = await read_content(activity.client(), workflow_id, first_run_id)
            self._contents.move_to_end(key)
            while len(self._contents) > MOST_CONTENTS:
                self._contents.popitem(last=False)
            return self._contents[key]
