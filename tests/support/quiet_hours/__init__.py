"""A third party's feature with all kinds of parts: a call of a tool with `Quiet` waits until the quiet time is over.

Used from outside of the tree: `MULLIGAN_LOAD=quiet_hours,quiet_hours.agents`.
"""

from mulligan.feature import FeatureParts

PARTS = FeatureParts(
    "quiet_hours",
    agent=f"{__name__}.declared:QuietHours",
    option=f"{__name__}.declared:Quiet",
    workflow=f"{__name__}.waiting:WaitsForTheEnd",
    activities=f"{__name__}.noting:activities",
    commands=f"{__name__}.command:COMMANDS",
    pages=f"{__name__}.page:PAGES",
)
