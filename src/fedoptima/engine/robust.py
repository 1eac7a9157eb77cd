"""Merging that a minority of hostile devices cannot steer (docs/security.md, "Robust merging").

What is compared is the change that an update makes: the update less the model its round began with.
The fleet is the last change of every device, so one that hands in more often has no more votes; and
since a device is compared with the median, at least half of the fleet is always accepted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedoptima.core.robust import RobustBarrier
from fedoptima.core.types import NodeId
from fedoptima.engine.payloads import Tensors

ENOUGH = 4  # devices: among fewer there is no majority to compare with
FAR = 4.0  # times the median norm: such a change is refused, not only clipped
APART = 0.4  # below the fleet's usual cosine, and below 0: such a change is refused
MEMORY = 0.9  # of a device's agreement with the fleet: one change is a tenth of it
AGAINST = 0.5  # of the fleet's usual agreement, below 0: a device that moves so is refused
TRIM = 0.25  # share of the values that a trimmed mean leaves out at each end


@dataclass(frozen=True)
class Update:
    device: NodeId
    weight: float
    tensors: Mapping[str, Tensor]
    base: Mapping[str, Tensor]  # what the round began with
    delta: bool = False  # its parameters are handed in as their change


class RobustMerging:
    """Of one side of the model: its parameters and its other floating-point tensors (buffers)."""

    def __init__(
        self, kind: RobustBarrier, parameters: Collection[str], tensors: Mapping[str, Tensor]
    ) -> None:
        self._kind = kind
        floats = [name for name, tensor in tensors.items() if tensor.is_floating_point()]
        self._groups = (
            [name for name in floats if name in parameters],
            [name for name in floats if name not in parameters],
        )
        self.latest: dict[NodeId, list[Tensor]] = {}  # changes, as one vector for each group
        # How far a device's changes have pointed the way of the others', on average, and the
        # devices that are refused for it. A single change of a device with data of its own kind
        # may well point elsewhere; all of them together do not, unless the device is hostile.
        self._agreement: dict[NodeId, float] = {}
        self._against: dict[NodeId, None] = {}

    def see(self, updates: Sequence[Update]) -> None:
        if self._kind in ("trimmed_mean", "median"):
            return  # these compare the updates of one merge
        for update in updates:
            self.latest[update.device] = [self._change(update, names) for names in self._groups]
        if self._kind == "refuse" and len(self.latest) >= ENOUGH:
            self._compare([update.device for update in updates])

    def _compare(self, devices: Sequence[NodeId]) -> None:
        changes = self._directions()
        names = list(self.latest)
        for device in devices:
            number = names.index(device)
            cosines = torch.nan_to_num(changes @ changes[number], nan=-1.0)
            others = torch.cat([cosines[:number], cosines[number + 1 :]])
            new, old = float(middle(others)), self._agreement.get(device)
            self._agreement[device] = new if old is None else MEMORY * old + (1 - MEMORY) * new
        usual = float(middle(torch.tensor(list(self._agreement.values()))))
        for device in devices:
            if self._agreement[device] >= 0:
                self._against.pop(device, None)
            elif self._agreement[device] < -AGAINST * usual < 0:
                self._against[device] = None

    def _change(self, update: Update, names: Sequence[str]) -> Tensor:
        delta = update.delta and names is self._groups[0]
        parts = [
            (update.tensors[name] if delta else update.tensors[name] - update.base[name]).flatten()
            for name in names
        ]
        return torch.cat(parts) if parts else torch.zeros(0)

    # ---- who is merged -----------------------------------------------------------------------

    def refusals(self, updates: Sequence[Update]) -> dict[int, str]:
        """The updates, by number, that stand out too much, and why."""
        if self._kind != "refuse" or len(self.latest) < ENOUGH:
            return {}
        far = [self._how_far(group) for group in range(len(self._groups))]
        cosines = self._cosines()
        usual = float(middle(torch.tensor(list(cosines.values()))))
        times = {device: max(group[device] for group in far) for device in cosines}
        too_far = [device for device in cosines if not times[device] <= FAR]
        apart = [d for d in cosines if cosines[d] < min(0.0, usual - APART) and d not in too_far]
        # The worst first: whatever the fleet looks like, at least half of it is accepted.
        worst = [
            *sorted(too_far, key=lambda device: -times[device]),
            *sorted(apart, key=lambda device: cosines[device]),
        ][: len(self.latest) // 2]
        why = {
            device: (
                f"it changes the model {times[device]:.3g} times as much as usual in this fleet; "
                f"up to {FAR:g} times is accepted"
            )
            if device in too_far
            else (
                f"it moves the model against the fleet: its cosine with the median of the "
                f"others is {cosines[device]:.2f}, and {usual:.2f} is usual"
            )
            for device in worst
        }
        against = {
            device: "its device moves the model against the fleet: the cosine with the others is "
            f"{self._agreement[device]:.2f} on average"
            for device in self._against
            if device not in why
        }
        if 2 * (len(why) + len(against)) <= len(self.latest):
            why |= against
        return {n: why[update.device] for n, update in enumerate(updates) if update.device in why}

    def _how_far(self, group: int) -> dict[NodeId, float]:
        """The norm of each device's change, as a multiple of the median."""
        norms = torch.stack([vectors[group].norm() for vectors in self.latest.values()])
        # Where most devices change nothing, nothing can be said about the others.
        median = middle(norms)
        times = torch.where(median > 0, norms / median, torch.zeros_like(norms))
        return dict(zip(self.latest, times.tolist(), strict=True))

    def _cosines(self) -> dict[NodeId, float]:
        """Of each device's direction with the median of the others'."""
        changes = self._directions()
        ordered = changes.sort(dim=0).values
        cosines = [
            torch.cosine_similarity(own, median_of_others(own, ordered), dim=0) for own in changes
        ]
        return dict(zip(self.latest, torch.stack(cosines).tolist(), strict=True))

    def _directions(self) -> Tensor:
        """The devices' changes of the parameters, one in each row, all of length 1."""
        changes = torch.stack([vectors[0] for vectors in self.latest.values()])
        return torch.nn.functional.normalize(changes, dim=1)

    # ---- how much of it ----------------------------------------------------------------------

    def parts(self, updates: Sequence[Update]) -> list[tuple[float, Mapping[str, Tensor]]]:
        """What is summed up instead of the updates."""
        if self._kind in ("trimmed_mean", "median"):
            return [(sum(update.weight for update in updates), self._centre(updates))]
        return [(update.weight, self._clipped(update)) for update in updates]

    def _clipped(self, update: Update) -> Tensors:
        """The update, its change no longer than the median of the fleet's."""
        tensors = dict(update.tensors)
        for group, names in enumerate(self._groups):
            times = self._how_far(group)[update.device]
            if times <= 1:
                continue
            for name in names:
                tensor, base = tensors[name], update.base[name]
                if update.delta and not group:
                    tensors[name] = tensor / times
                else:
                    tensors[name] = base + (tensor - base) / times
        return tensors

    def _centre(self, updates: Sequence[Update]) -> Tensors:
        """Value by value, the middle of the updates. Each counts once: a weight is a device's own
        word."""
        tensors = dict(updates[0].tensors)
        for name in tensors:
            values = torch.stack([update.tensors[name] for update in updates])
            if not values.is_floating_point():
                tensors[name] = values.amax(dim=0)
            elif self._kind == "median":
                tensors[name] = middle(values)
            else:
                cut = int(len(values) * TRIM)
                tensors[name] = values.sort(dim=0).values[cut : len(values) - cut].mean(dim=0)
        return tensors

    # ---- checkpoint --------------------------------------------------------------------------

    def save(self) -> tuple[list[NodeId], Tensors]:
        """The devices' names are in the list only, not in the names of tensors."""
        tensors = {
            f"{number}.{group}": vector
            for number, vectors in enumerate(self.latest.values())
            for group, vector in enumerate(vectors)
        }
        nothing = float("nan")
        tensors["agreement"] = torch.tensor(
            [
                [self._agreement.get(device, nothing), float(device in self._against)]
                for device in self.latest
            ],
            dtype=torch.float64,
        )
        return list(self.latest), tensors

    def restore(self, devices: Sequence[NodeId], tensors: Tensors) -> None:
        self.latest = {
            device: [tensors[f"{number}.{group}"] for group in range(len(self._groups))]
            for number, device in enumerate(devices)
        }
        kept = dict(zip(devices, tensors["agreement"].tolist(), strict=True))
        self._agreement = {device: row[0] for device, row in kept.items() if row[0] == row[0]}
        self._against = {device: None for device, row in kept.items() if row[1]}


def middle(values: Tensor) -> Tensor:
    """The median along the first dimension, of an even number the mean of the two in the middle.

    Not torch.quantile, which takes 16 million values at most.
    """
    ordered = values.sort(dim=0).values
    return (ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) / 2


def median_of_others(own: Tensor, ordered: Tensor) -> Tensor:
    """``ordered``: the values of all, sorted along the first dimension; ``own`` is one of them."""
    count = len(ordered)
    half = count // 2
    if count % 2 == 0:
        return torch.where(own <= ordered[half - 1], ordered[half], ordered[half - 1])
    below, above = own < ordered[half], own > ordered[half]
    low = torch.where(below, ordered[half], ordered[half - 1])
    high = torch.where(above, ordered[half], ordered[half + 1])
    return (low + high) / 2
