"""What the author of a feature imports (docs/features.md). Provisional in all 0.x."""

from mulligan.features.agent_feature import Needs
from mulligan.features.feature_parts import FeaturePages, FeatureParts
from mulligan.features.tool_option import ToolOption, Traits
from mulligan.tool import CallsOthers
from mulligan.wire.model_call import ModelAnswer, ModelCall, RejectedAnswer
from mulligan.wire.run_context import RunContext
from mulligan.wire.tool_call import ToolOutcome
from mulligan.workflows.feature import EndTurn, Feature, StepAgain
from mulligan.workflows.running_agent import RunningAgent
from mulligan.workflows.scheduling import NoResult, Schedule
from mulligan.workflows.step_call import StepCall
from mulligan.workflows.waits import Wait, WaitKind

__all__ = [
    "CallsOthers",
    "EndTurn",
    "Feature",
    "FeaturePages",
    "FeatureParts",
    "ModelAnswer",
    "ModelCall",
    "Needs",
    "NoResult",
    "RejectedAnswer",
    "RunContext",
    "RunningAgent",
    "Schedule",
    "StepAgain",
    "StepCall",
    "ToolOption",
    "ToolOutcome",
    "Traits",
    "Wait",
    "WaitKind",
]
