"""Options that several methods have, and what each means: one text for all of them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedoptima.core.robust import Robust, RobustBarrier

StalenessOption = Annotated[
    Literal["inverse", "constant", "polynomial", "hinge"],
    Field(
        description="What an update that is s versions behind counts. inverse: 1 / (s + 1); "
        "constant: 1; polynomial: (s + 1) ** -a; hinge: 1 while s <= b, then "
        "1 / (a (s - b) + 1)."
    ),
]
AlphaOption = Annotated[
    float, Field(description="Share of the merged model that a fresh update gets.")
]
AlphaMaxOption = Annotated[float, Field(description="Largest share that an update gets.")]
StalenessAOption = Annotated[float, Field(description="a of polynomial and hinge.")]
StalenessBOption = Annotated[float, Field(description="b of hinge.")]
MaxDelayOption = Annotated[
    int | None,
    Field(
        description="D: an update more versions behind is refused; unset: 8 K, of what was merged "
        "during an absence.",
        examples=[64],
    ),
]
RobustOption = Annotated[
    Robust,
    Field(description="Limits what hostile devices can do to the model; refuse is recommended."),
]
RobustBarrierOption = Annotated[
    RobustBarrier,
    Field(description="Limits what hostile devices can do to the model; refuse is recommended."),
]
OnLeaveOption = Annotated[
    Literal["drop", "wait"],
    Field(
        description="When a device leaves in a round: it goes on without it, or waits until it is "
        "back."
    ),
]
ParticipationOption = Annotated[
    float,
    Field(
        description="Share of the devices that are in a round, at least one; drawn anew for each "
        "round. The others wait."
    ),
]
BarrierTimeoutOption = Annotated[
    float | None,
    Field(
        description="Seconds for which devices that are connected and silent are waited for; "
        "unset: 30 predicted rounds, at least 300.",
        examples=[600.0],
    ),
]
