"""Features of modules outside of the tree: what is refused, and in whose runs they act."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from temporalio import activity

from mulligan import Agent, AgentFeature, Call, DeclarationError, Say
from mulligan.feature import Feature, FeatureParts, ModelAnswer, RejectedAnswer, Schedule, Wait
from mulligan.testing import ScriptedModel, run_agent
from mulligan.values import ErrorInfo
from mulligan.wire.start_input import StartInput
from mulligan.wire.tool_call import CALL_TOOL
from mulligan.worker.loading import load
from mulligan.worker.wiring import LoadedFeatures
from mulligan.workflows.features import MissingFeatureError, with_loaded
from tests.support import one_word_feature
from tests.support.one_word_feature import OneWord, OneWordInWorkflow


class TakesAName(Feature):
    __module__ = "shop.batch"


class TakesAnActivity(Feature):
    schedules: ClassVar = {CALL_TOOL: Schedule()}


class PersonWait(Wait):
    name: ClassVar[str] = "person"


class TakesAWait(Feature):
    waits: ClassVar = (PersonWait,)


class BeginsATurn(Feature):
    def begin_turn(self, run_input: StartInput) -> StartInput:
        return run_input


@pytest.mark.parametrize(
    ("feature", "sentence"),
    [
        (TakesAName, "shop.batch.TakesAName: another feature, or Mulligan itself, already has feature 'batch'; rename"),
        (
            TakesAnActivity,
            "TakesAnActivity: another feature, or Mulligan itself, already has activity 'call_tool'; rename",
        ),
        (TakesAWait, "TakesAWait: another feature, or Mulligan itself, already has wait 'person'; rename"),
        (
            BeginsATurn,
            "BeginsATurn has a begin_turn, which is called before it is known what the agent is declared with",
        ),
    ],
)
def test_a_feature_that_collides_with_another_one_is_refused(feature: type[Feature], sentence: str) -> None:
    with pytest.raises(DeclarationError, match=sentence):
        with_loaded((feature,))


def test_two_features_of_one_module_are_refused() -> None:
    with pytest.raises(DeclarationError, match="already has feature 'test_own_features'"):
        with_loaded((Second, Third))


class Second(Feature):
    pass


class Third(Feature):
    pass


class WithoutPart(AgentFeature):
    pass


@dataclass(frozen=True)
class SameName(OneWord):
    pass


def test_a_declaration_that_does_nothing_in_the_workflow_or_has_anothers_name_is_refused() -> None:
    with pytest.raises(DeclarationError, match="WithoutPart has no part in the workflow; set its parts"):
        Agent(name="a", model="openai:m", features=[WithoutPart()])
    with pytest.raises(DeclarationError, match="SameName and OneWord have one name; leave one out"):
        Agent(name="a", model="openai:m", features=[OneWord(), SameName()])


@activity.defn
def blocking() -> None:
    pass


def test_an_activity_of_a_feature_must_be_async() -> None:
    class Blocks(OneWord):
        parts = FeatureParts("one_word_feature", workflow=OneWordInWorkflow, activities=(blocking,))

    with pytest.raises(
        DeclarationError, match=r"blocking.* is among the activities of a feature; make it an `async def`"
    ):
        load((), agents=[Agent(name="a", model="openai:m", features=[Blocks()])])


def test_a_worker_has_the_features_of_its_agents_and_those_of_its_modules() -> None:
    """A module without an agent is loaded by workers that run the workflows of other workers' agents."""
    of_agent = load((), agents=[one_word_feature.strict])
    assert of_agent.features == (OneWord.parts,)
    assert one_word_feature.__name__ in of_agent.modules
    [of_module] = [load([one_word_feature.__name__])]
    assert LoadedFeatures(of_module).classes == (OneWordInWorkflow,)
    assert LoadedFeatures(load((), agents=[one_word_feature.lax])).classes == ()


def test_a_feature_that_a_worker_lacks_is_never_left_out() -> None:
    assert with_loaded((OneWordInWorkflow,)).declared(["batch", "one_word_feature"]) == [OneWordInWorkflow]
    with pytest.raises(
        MissingFeatureError, match="feature 'one_word_feature', which this worker does not have; load its"
    ):
        with_loaded(()).declared(["batch", "one_word_feature"])


async def test_a_feature_acts_in_the_runs_of_agents_that_are_declared_with_it_only() -> None:
    strict, lax = one_word_feature.strict, one_word_feature.lax
    refused = await run_agent(strict, "Hi", model=ScriptedModel(Say("Two words.")), others=[lax])
    assert refused.result is not None
    assert (refused.result.status, refused.output) == ("refused", None)
    assert (await run_agent(lax, "Hi", model=ScriptedModel(Say("Two words.")), others=[strict])).output == "Two words."


class Refusing(Feature):
    async def accept(self, answer: ModelAnswer) -> RejectedAnswer | None:
        if "3" in answer.message.text + "".join(str(call.arguments) for call in answer.message.tool_calls):
            return RejectedAnswer(text="Not 3.", error=ErrorInfo(kind="three", message="Not 3."))
        return None


@dataclass(frozen=True)
class Refuses(AgentFeature):
    parts = FeatureParts("test_own_features", workflow=Refusing)


@pytest.mark.parametrize(
    "output", [None, {"title": "Sum", "type": "object", "properties": {"value": {"type": "integer"}}}]
)
async def test_a_refused_answer_is_no_output_of_the_run(output: Any) -> None:
    """Neither a text, nor one that is valid as structured output."""
    three, four = (Say(calls=[Call("Sum", {"value": n})]) if output else Say(f"It is {n}.") for n in (3, 4))
    agent = Agent(name="a", model="openai:m", output=output, features=[Refuses()])
    run = await run_agent(agent, "Hi", model=ScriptedModel(three, four))
    assert run.output == ({"value": 4} if output else "It is 4.")
    assert [step.error and step.error.kind for step in run.steps] == ["three", None]
    cut = await run_agent(agent, "Hi", max_steps=1, model=ScriptedModel(three))
    assert cut.result is not None
    assert (cut.result.status, cut.output) == ("max_steps", None)
