"""Accounts in a checkpoint: a resumed run counts on from there and need not read its trace.

What was saved is taken by the same classes only. After a change of any of them it does not fit any
more, and the accounts are made from the trace again, as for a checkpoint that has none.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, cast

import fedoptima.core.serializable_types  # noqa: F401  (makes every core class known by name)
from fedoptima.analysis.balance import ContributionTally
from fedoptima.analysis.curve import Point
from fedoptima.analysis.fleet import DeviceFacts, DeviceState
from fedoptima.analysis.idle_time import NodeClock
from fedoptima.analysis.level import LevelMeter
from fedoptima.analysis.staleness import StalenessTally
from fedoptima.core.serialization import freeze, register, thaw
from fedoptima.core.types import SERVER

Saved = dict[str, object]  # ready for JSON

register(Point, NodeClock, LevelMeter, StalenessTally, ContributionTally, DeviceFacts, DeviceState)
_PARTS = {
    "Point": [field.name for field in fields(Point)],
    **{
        type(part).__name__: sorted(vars(part))
        for part in (
            NodeClock(SERVER),
            LevelMeter(),
            StalenessTally(),
            ContributionTally(),
            DeviceFacts(),
        )
    },
}


class Unfit(ValueError):
    """Saved by another version: the accounts are to be made from the trace."""


def save(accounts: Mapping[str, object]) -> Saved:
    """By name. Where one refers to another of them, that is left to the objects themselves."""
    return {
        "layout": _layout(accounts),
        **{
            name: {key: freeze(_plain(value)) for key, value in _own(account, accounts).items()}
            for name, account in accounts.items()
        },
    }


def restore(accounts: Mapping[str, object], saved: object) -> None:
    """Put fresh accounts into the state that `save` was given."""
    if not isinstance(saved, dict) or saved.get("layout") != _layout(accounts):
        raise Unfit("the accounts of this checkpoint were saved by another version")
    for name, account in accounts.items():
        for key, plain in saved[name].items():
            value, present = thaw(plain), vars(account)[key]
            if isinstance(present, defaultdict):
                present.clear()
                present.update(cast("dict[object, object]", value))
            else:
                vars(account)[key] = value


def _own(account: object, accounts: Mapping[str, object]) -> dict[str, Any]:
    others = {id(other) for other in accounts.values()}
    return {key: value for key, value in vars(account).items() if id(value) not in others}


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, defaultdict) else value


def _layout(accounts: Mapping[str, object]) -> str:
    """Of which attributes everything is made."""
    made_of = {name: sorted(_own(account, accounts)) for name, account in accounts.items()}
    return hashlib.sha256(repr((made_of, _PARTS)).encode()).hexdigest()
