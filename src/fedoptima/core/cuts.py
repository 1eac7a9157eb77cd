"""Cuts of single devices: which of the plan's each has, how old the parts of its model are, and
when it is planned for again (docs/decisions/0040).

Blocks up to the plan's first cut are held by all devices, those up to the second by the devices
with that cut or a later one, and so on. Blocks behind the first cut are trained by the server, too,
which counts as one more of those who hold them. Auxiliary networks differ from cut to cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from fedoptima.core.errors import ProtocolViolation
from fedoptima.core.messages import Join, ModelUpdate
from fedoptima.core.plan import Plan
from fedoptima.core.types import NodeId

ROUNDS: Final = 3  # in a row that say the same: then a link or a speed has changed for good
WORTH_IT: Final = 0.9  # of the time that a batch takes now
_NOTHING: Final[Mapping[int, float]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class CutOption:
    """What a cut means for a device; all figures are per sample."""

    split: int
    counted: float  # FLOPs, as the plan's objective counts them
    nbytes: int  # of activations
    forward: float  # FLOPs
    training: float  # FLOPs besides those of the forward pass, where the device trains
    within: float = 0.0  # seconds that a device may take, so that the server has less to do

    def seconds(self, flops_per_second: float, bytes_per_second: float) -> float:
        """Until the next sample may follow."""
        return max(self.counted / flops_per_second, self.nbytes / bytes_per_second)

    def rank(self, flops_per_second: float, bytes_per_second: float) -> tuple[float, int]:
        """The least is best: the latest cut in time, else the quickest, of equals the earliest."""
        seconds = self.seconds(flops_per_second, bytes_per_second)
        return (self.within, -self.split) if seconds <= self.within else (seconds, self.split)


def options_of(plan: Plan) -> tuple[CutOption, ...]:
    found = []
    for cut in plan.cuts:
        own, extra = plan.blocks[: cut.split], cut.auxiliary_profile
        training = sum(block.backward_flops for block in own)
        training += extra.forward_flops + extra.backward_flops if extra else 0.0
        forward = sum(block.forward_flops for block in own)
        figures = (cut.flops, own[-1].output_bytes, forward, training, plan.sample_seconds)
        found.append(CutOption(cut.split, *figures))
    return tuple(found)


def best_option(
    options: Sequence[CutOption],
    speed: float,
    link: float,
    measured: Mapping[int, float] = _NOTHING,
) -> CutOption:
    """The paper's rule for one device alone, or as much as it can do in the plan's time.

    ``measured``: the device's speed with some of the cuts, where it is known.
    """
    return min(options, key=lambda one: one.rank(measured.get(one.split, speed), link))


class Cuts:
    # Here, because checkpoints of earlier versions do not have it.
    _speeds: dict[NodeId, tuple[float, dict[int, float]]] | None = None

    def __init__(self, plan: Plan) -> None:
        self._options = options_of(plan)
        self._plans = {cut.split: plan.at(cut.split).to_json() for cut in plan.cuts}
        self._of: dict[NodeId, int] = {}
        self._planned: dict[NodeId, tuple[float, float]] = {}  # FLOP/s and bytes/s
        self._recent: dict[NodeId, tuple[tuple[float, float], ...]] = {}  # as measured, by round
        self._speeds = {}  # what a device claims, and as measured by cut, the latest at the end
        self._merged = dict.fromkeys(self._plans, 0.0)  # from devices with each cut, in mean shares
        self._then: dict[NodeId, dict[int, float]] = {}  # when a device was sent its model

    @property
    def splits(self) -> tuple[int, ...]:
        return tuple(self._plans)

    def plan_of(self, split: int) -> str:
        return self._plans[split]

    def of(self, device: NodeId) -> int:
        return self._of[device]

    def joined(self, device: NodeId, join: Join) -> int:
        """Its cut. One that comes with work keeps the cut that the work was made for.

        What was measured of its speed counts until it claims another one.
        """
        measured = self._measured(device, join.flops_per_second)
        speed = next(reversed(measured.values()), join.flops_per_second)
        link = join.bytes_per_second
        if join.has_work and join.cut in self._plans:
            self._of[device] = join.cut
        else:
            self._of[device] = best_option(self._options, speed, link, measured).split
        self._planned[device] = (measured.get(self._of[device], speed), link)
        self._recent.pop(device, None)
        return self._of[device]

    def check_batch(self, device: NodeId, cut: int) -> None:
        """Batches from before a new plan may come after it."""
        if cut not in self._plans:
            raise ProtocolViolation(f"{device} sent activations of cut {cut}, which is not planned")

    def check_update(self, device: NodeId, update: ModelUpdate) -> None:
        own = self._of[device]
        if update.cut != own:
            raise ProtocolViolation(f"{device} sent an update of cut {update.cut}, not of {own}")

    # ---- the age of each part ----------------------------------------------------------------

    def sent(self, device: NodeId) -> None:
        self._then[device] = dict(self._merged)

    def merged(self, cut: int, size: float) -> None:
        self._merged[cut] += size

    def ages(self, device: NodeId, cut: int, behind: float) -> tuple[float, ...]:
        """How much was merged into each part of its model since the device was sent it: into the
        blocks up to each of the plan's cuts, to its own, and into its auxiliary network.

        ``behind``: merged in all. The server counts as one that has merged its own training.
        """
        then = self._then.get(device, self._merged)
        since = {split: now - then.get(split, 0.0) for split, now in self._merged.items()}
        held = [split for split in self._plans if split <= cut]
        ages = [behind - sum(n for s, n in since.items() if s < split) for split in held]
        ages = [max(0.0, age) + (place > 0) for place, age in enumerate(ages)]
        others = sum(n for split, n in since.items() if split != cut)
        return (*ages, max(0.0, behind - others))

    # ---- another plan ------------------------------------------------------------------------

    def measured(self, device: NodeId, update: ModelUpdate) -> None:
        """What an update says of its device's speed and link."""
        recent = self._recent.get(device, ())
        speed, link = recent[-1] if recent else self._planned[device]
        option = self._option(update.cut)
        work = option.forward * update.processed + option.training * update.trained
        if update.seconds > 0 and work > 0:
            speed = work / update.seconds
            known = self._measured(device)
            known.pop(update.cut, None)
            known[update.cut] = speed
        link = update.bytes_per_second or link
        self._recent[device] = (*recent, (speed, link))[-ROUNDS:]

    def replan(self, device: NodeId) -> str:
        """Give the device another cut, if that is better for good; says why, or nothing."""
        recent, own = self._recent.get(device, ()), self._option(self._of[device])
        if len(recent) < ROUNDS:
            return ""
        # A speed that was measured with one cut says less of another than one measured there.
        others = {cut: v for cut, v in self._measured(device).items() if cut != own.split}
        other, *earlier = (best_option(self._options, *f, others) for f in reversed(recent))
        if other == own or any(best != other for best in earlier):
            return ""
        there = [(others.get(other.split, speed), link) for speed, link in recent]
        for here, then in zip(recent, there, strict=True):
            if other.seconds(*then) > WORTH_IT * max(own.seconds(*here), own.within):
                return ""
        before, now = self._planned[device], recent[-1]
        self._of[device], self._planned[device] = other.split, there[-1]
        del self._recent[device]
        return (
            f"blocks on the device: {other.split} instead of {own.split}; in its last {ROUNDS} "
            f"rounds {_in_words(now)}, planned for {_in_words(before)}"
        )

    def _measured(self, device: NodeId, claim: float | None = None) -> dict[int, float]:
        """Its speed with each cut that it has had; none, if it claims another than before."""
        if self._speeds is None:
            self._speeds = {}
        claimed, measured = self._speeds.get(device, (0.0, {}))
        if claim is not None and claim != claimed:
            claimed, measured = claim, {}
        self._speeds[device] = (claimed, measured)
        return measured

    def _option(self, split: int) -> CutOption:
        return next(option for option in self._options if option.split == split)


def _in_words(figures: tuple[float, float]) -> str:
    return f"{figures[0] / 1e9:.3g} GFLOP/s and {figures[1] * 8 / 1e6:.3g} Mbit/s"
