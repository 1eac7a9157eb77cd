"""The colours of everything that is drawn, in one place: the same thing looks the same everywhere.

Based on the set of Okabe and Ito, which people with any colour blindness can tell apart. Methods
also differ by their dashes, and kinds of time are always named beside their colour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedoptima.analysis.spans import Kind


@dataclass(frozen=True, slots=True)
class Look:
    """How a method's line is drawn."""

    colour: str
    dash: str  # as plotly names it


_KINDS = {
    Kind.TRAIN: "#0072B2",
    Kind.REUSE: "#F0E442",
    Kind.MERGE: "#56B4E9",
    Kind.OTHER: "#999999",
    Kind.SEND: "#009E73",
    Kind.RECEIVE: "#CC79A7",
    Kind.IDLE_1: "#E69F00",
    Kind.IDLE_2: "#D55E00",
}
KINDS_ON_LIGHT: Mapping[Kind, str] = {**_KINDS, Kind.AWAY: "#DDDDDD"}
KINDS_ON_DARK: Mapping[Kind, str] = {**_KINDS, Kind.AWAY: "#444444"}

KIND_NAMES: Mapping[Kind, str] = {
    Kind.TRAIN: "training",
    Kind.REUSE: "training again",
    Kind.MERGE: "merging",
    Kind.OTHER: "other work",
    Kind.SEND: "sending",
    Kind.RECEIVE: "receiving",
    Kind.IDLE_1: "waiting for the other side",
    Kind.IDLE_2: "waiting for slower devices",
    Kind.AWAY: "away",
}

METHODS: Mapping[str, Look] = {
    "fedoptima": Look("#0072B2", "solid"),
    "fl": Look("#D55E00", "dash"),
    "fedasync": Look("#009E73", "dot"),
    "fedbuff": Look("#CC79A7", "dashdot"),
    "splitfed": Look("#E69F00", "longdash"),
    "pipar": Look("#56B4E9", "longdashdot"),
    "oafl": Look("#999999", "5px 2px"),
    "cse_fsl": Look("#8C564B", "2px 2px 8px 2px"),
    "fedoptima_plus": Look("#6A3D9A", "12px 3px"),
}
