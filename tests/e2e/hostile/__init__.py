"""A device with a valid certificate that tries everything, one function for each attempt.

An attempt may be refused at any point, so errors of the connection are expected; what the server
makes of it all is judged at the end of the run.
"""

from tests.e2e.hostile import figures, names, records, resources  # attempts are made in this order
from tests.e2e.hostile.field import (
    BEFORE_THE_PLAN,
    DURING_THE_RUN,
    EVE,
    MALLORY,
    TRUDY,
    Attack,
    Field,
)

__all__ = [
    "BEFORE_THE_PLAN",
    "DURING_THE_RUN",
    "EVE",
    "MALLORY",
    "TRUDY",
    "Attack",
    "Field",
    "figures",
    "names",
    "records",
    "resources",
]
