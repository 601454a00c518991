"""`check_experiment` and `score_row`: whether this worker has a score function, and what that says of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from mulligan.activities.experiments.experiment_contents import ExperimentContents
from mulligan.activities.heartbeat import heartbeating
from mulligan.activities.services import Services
from mulligan.activities.tool_running.thread_bounds import TookTooLong, TooManyThreads
from mulligan.client.experiments.experiment_content import ExperimentError
from mulligan.client.export_case import export_case
from mulligan.client.origins.run_state import NoWorkerError, ResumeError
from mulligan.client.read_run import read_steps, wait_for_end
from mulligan.schema.cut_text import beginning
from mulligan.schema.error_text import error_text, type_name
from mulligan.score import Score, read_score
from mulligan.values import RunResult, Step
from mulligan.wire.case import Case
from mulligan.wire.experiments import CHECK_EXPERIMENT, ERROR_CHARS, SCORE_ROW, CheckExperiment, Line, Scored, ScoreRow

SCORE_SECONDS = 300.0
"""Seconds for one call of a score function, which may ask a model."""


@dataclass(frozen=True)
class ScoreRowActivities:
    """The activities `check_experiment` and `score_row`."""

    services: Services
    contents: ExperimentContents

    @activity.defn(name=CHECK_EXPERIMENT)
    async def check_experiment(self, request: CheckExperiment) -> None:
        """Check that there is a score function.

        Raises:
            ApplicationError: this worker has not loaded it. Another one may have.
        """
        self._find(request.score)

    @activity.defn(name=SCORE_ROW)
    async def score_row(self, request: ScoreRow) -> Scored:
        """What the score function says of a run that has ended. Its exception is data.

        Raises:
            ApplicationError: this worker has not loaded the function.
            NoWorkerError, RPCError: no worker, or Temporal, does not answer.
        """
        score = self._find(request.score)
        async with heartbeating():
            client = activity.client()
            try:
                source = (await self.contents.source(request)).source
                case: Case | Line = await export_case(client, source) if isinstance(source, str) else source
            except NoWorkerError:
                raise
            except (ResumeError, ExperimentError) as error:
                return Scored(error=_cut(f"It has no score: {error}"))
            handle = client.get_workflow_handle(request.run_id)
            result = RunResult[Any].model_validate((await wait_for_end(handle)).result)
            steps = [Step.model_validate(each) for each in await read_steps(client, handle)]
            scored = await self._scored(score, case, result, steps)
            if scored.score is not None and result.trace_id:
                first = (await handle.describe()).raw_description.workflow_execution_info.first_run_id
                by_name = scored.score if isinstance(scored.score, dict) else {score.name: scored.score}
                self.services.telemetry.record_evaluation(handle.id, first, result.trace_id, score.name, by_name)
        return scored

    async def _scored(self, score: Score, case: Case | Line, result: RunResult[Any], steps: list[Step]) -> Scored:
        run = self.services.runtime.run
        try:
            value = await run(score.function, (case, result, steps), limit=SCORE_SECONDS, read=read_score)
        except (TookTooLong, TooManyThreads) as error:
            return Scored(error=_cut(f"The score function {score.name} did not end in {SCORE_SECONDS:g} s: {error}"))
        except Exception as error:  # noqa: BLE001 - users' code raises anything
            return Scored(error=_cut(f"The score function {score.name}: {type_name(error)}: {error_text(error)}"))
        return Scored(score=value)

    def _find(self, name: str) -> Score:
        """The score function of a name.

        Raises:
            ApplicationError: there is none.
        """
        scores = self.services.registry.scores
        if name not in scores:
            known = ", ".join(sorted(scores)) or "none"
            raise ApplicationError(
                f"No worker that was asked has the score function {name[:200]!r}; a worker loads its module (--load) and "
                f"finds functions with @score there. There are: {known[:500]}.",
                type="UnknownScore",
            )
        return scores[name]


def _cut(text: str) -> str:
    return beginning(" ".join(text.split()), ERROR_CHARS)
