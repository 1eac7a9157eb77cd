"""Costs of our own models on our own data sets, stored with the package.

With them a dry run plans without torch, which takes longer to load than a small dry run. They are
what `preprocess.sides.MeasuredCosts` measures: ``python -m tools.stored_costs --write`` writes the
file, and tests/preprocess/test_stored_costs.py compares it with a measurement.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from fedoptima.core.errors import InvariantBroken
from fedoptima.core.plan import BlockProfile, block_from_plain
from fedoptima.preprocess.split import Entry, Profile

FILE = "stored_costs.json"


@dataclass(frozen=True)
class StoredCosts:
    profile: Profile
    auxiliaries: tuple[BlockProfile, ...]  # behind 1, 2, 3 ... blocks; none: there is none

    def blocks(self) -> Profile:
        return self.profile

    def auxiliary(self, split: int) -> BlockProfile | None:
        return self.auxiliaries[split - 1] if self.auxiliaries else None

    def entry(self, split: int) -> Entry:
        block = self.profile.blocks[split]
        return Entry(block.entry_flops, block.entry_moved)

    def after(self, module: str) -> int:
        raise InvariantBroken("a cut at a module is found in the model, not in stored costs")

    def trains_behind(self, split: int) -> bool:
        return True  # nothing is frozen in our own models


def find_costs(model: str, facts: Mapping[str, int], auxiliary: str | int) -> StoredCosts | None:
    """Of a model without options on data with these facts; None: they have to be measured."""
    stored = next((s for s in _stored().get(model, ()) if s["facts"] == facts), None)
    if stored is None or not (auxiliary == "none" or auxiliary in stored["auxiliary"]):
        return None
    networks = stored["auxiliary"].get(auxiliary, ())
    return StoredCosts(
        Profile(tuple(map(block_from_plain, stored["blocks"]))),
        tuple(map(block_from_plain, networks)),
    )


@cache
def _stored() -> dict[str, list[dict[str, Any]]]:
    text = (resources.files("fedoptima.preprocess") / FILE).read_text(encoding="utf-8")
    found: dict[str, list[dict[str, Any]]] = json.loads(text)
    return found
