"""The models of devices with cuts of their own: which tensors each holds, and how they are merged.

There is one of each block, whoever holds it: the ones that all devices hold and the auxiliary
networks are here, the others are those that the server side trains (docs/decisions/0040).
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedoptima.core.jobs import CutMerge
from fedoptima.core.plan import Plan
from fedoptima.engine.aggregator import merge
from fedoptima.engine.codecs import UpdateCodec
from fedoptima.engine.payload_validation import ExpectedModel
from fedoptima.engine.payloads import AUXILIARY, Tensors, copy_of, under
from fedoptima.preprocess.sides import Sides


class CutModels:
    def __init__(self, plan: Plan, sides: Mapping[int, Sides]) -> None:
        """``sides``: of every cut, in their order."""
        self.auxiliaries: dict[int, Tensors] = {}
        self.codecs: dict[int, UpdateCodec] = {}
        self.expected: dict[int, ExpectedModel] = {}
        self._parts: dict[int, list[tuple[str, ...]]] = {}  # names, by the first cut that has them
        parts: list[tuple[str, ...]] = []
        known: set[str] = set()
        for cut, side in sides.items():
            state, extra = side.device.state_dict(), side.auxiliary
            parts = [*parts, tuple(name for name in state if name not in known)]
            known |= state.keys()
            self._parts[cut] = parts
            names = {name for name, _ in side.device.named_parameters(remove_duplicate=False)}
            self.auxiliaries[cut] = {}
            if extra is not None:
                own = copy_of(extra.state_dict())
                self.auxiliaries[cut] = {AUXILIARY + name: t for name, t in own.items()}
                named = extra.named_parameters(remove_duplicate=False)
                names |= {AUXILIARY + name for name, _ in named}
            first = {**copy_of(state), **self.auxiliaries[cut]}
            self.codecs[cut] = UpdateCodec.of(plan.codecs.updates, first, names)
            self.expected[cut] = ExpectedModel(first, names, self.codecs[cut])

    def model(self, cut: int, blocks: Mapping[str, Tensor]) -> Tensors:
        """What a device with this cut has, as it is now. ``blocks``: all of the model's."""
        own = {name: blocks[name] for part in self._parts[cut] for name in part}
        return own | self.auxiliaries[cut]

    def merged(self, job: CutMerge, base: Tensors, update: Mapping[str, Tensor]) -> Tensors:
        """``base``: the model of this cut."""
        found: Tensors = {}
        names = [*self._parts[job.cut], tuple(self.auxiliaries[job.cut])]
        for part, weight in zip(names, job.weights, strict=True):
            found |= merge({name: base[name] for name in part}, 1 - weight, [(weight, update)])
        return found

    def put_auxiliary(self, cut: int, model: Mapping[str, Tensor]) -> None:
        self.auxiliaries[cut] = {name: model[name] for name in self.auxiliaries[cut]}

    # ---- checkpoint --------------------------------------------------------------------------

    def save(self) -> Tensors:
        return {
            f"{cut}.{name}": tensor
            for cut, network in self.auxiliaries.items()
            for name, tensor in network.items()
        }

    def restore(self, tensors: Tensors) -> None:
        self.auxiliaries = {cut: under(f"{cut}.", tensors) for cut in self.auxiliaries}
