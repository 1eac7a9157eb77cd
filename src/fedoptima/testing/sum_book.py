"""Updates that a server adds up ahead of their merge: each once, and the merge names them all."""

from __future__ import annotations

from collections.abc import Sequence

from fedoptima.core.effects import Effect, Fold, Run
from fedoptima.core.jobs import FoldedMerge
from fedoptima.core.types import NodeId, PayloadId
from fedoptima.testing.law_broken import LawBroken


class SumBook:
    def __init__(self) -> None:
        self._added: dict[PayloadId, NodeId] = {}

    def copy(self) -> SumBook:
        other = SumBook()
        other._added = dict(self._added)
        return other

    def holds(self, update: PayloadId) -> bool:
        return update in self._added

    def see(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Fold(part):
                    if part.device in self._added.values():
                        text = f"two updates of {part.device} are in the sum of one merge"
                        raise LawBroken("exactly once", text)
                    self._added[part.data.id] = part.device
                case Run(_, FoldedMerge(parts=parts)):
                    named = {part.data.id for part in parts}
                    if named != self._added.keys():
                        text = f"the sum has {list(self._added)}, and the merge {sorted(named)}"
                        raise LawBroken("exactly once", text)
                    self._added.clear()
