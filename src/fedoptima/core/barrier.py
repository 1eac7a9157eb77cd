"""FedAvg's barrier: a round ends for all its devices together.

A round's members are the devices that were there when it began; whoever comes later is in the next
one. So a round that has begun only ever waits for fewer devices: under constant churn, newcomers
that counted at once would extend it for ever.

With ``participation`` below 1 a round's members are drawn from the devices that are there; the
others wait for a later round, as newcomers do.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace
from typing import Final, Literal

from fedoptima.core.aggregation import WAIT, Decision, Offer
from fedoptima.core.errors import ConfigError, InvariantBroken
from fedoptima.core.jobs import FoldedMerge, Merge, Part
from fedoptima.core.messages import ModelUpdate
from fedoptima.core.seeding import derive
from fedoptima.core.types import NodeId

PATIENCE: Final = 30.0  # times a round of the median device
LEAST_PATIENCE: Final = 300.0  # seconds
SILENT: Final = 60.0  # seconds; longer than a lost connection stays unnoticed

OnLeave = Literal["drop", "keep", "wait"]


class Barrier:
    """Wait for every device of the round, then take the mean weighted by the samples they hold.

    ``on_leave`` says what a leaving device does to its round: "drop" continues without it and
    discards its update, "keep" continues without it, "wait" waits until it is back, unless it never
    sent work or had fallen silent before; with both an update that it handed in stays and counts.
    ``folds``, with "keep": updates are added up as they come, since none is taken out again, and
    only their names and weights are kept for the merge. ``timeout``:
    seconds for which devices that are connected and silent are waited for; they run while an update
    or a newcomer waits for them. None: `PATIENCE` times the longer of the predicted round and this
    round's first arrival, and at least `LEAST_PATIENCE`. ``participation``: the share of the
    devices that are in a round, at least one; drawn again for each round from the run's seed.
    """

    closes_round = True
    max_delay = 0
    folds = False  # these are not in checkpoints of before there were any
    participation = 1.0
    _left_behind: tuple[NodeId, ...] = ()  # their updates count, and they are gone
    _seed = 0
    _round = 0

    def __init__(
        self,
        *,
        on_leave: OnLeave = "drop",
        timeout: float | None = None,
        participation: float = 1.0,
        folds: bool = False,
    ) -> None:
        if not 0 < participation <= 1:
            raise ConfigError(
                f"participation = {participation}: must be above 0 and at most 1 (all devices)"
            )
        if timeout is not None and timeout <= 0:
            raise ConfigError(f"the barrier's timeout must be above 0 seconds, got {timeout}")
        self.on_leave = on_leave
        self.folds = folds and on_leave == "keep"
        self.timeout = timeout
        self.participation = participation
        self.deadline: float | None = None
        self._predicted = 0.0  # seconds of a round
        self._began = 0.0  # this round
        self._first = 0.0  # seconds until its first arrival
        self._since: float | None = None  # an update or a newcomer waits
        self._pool: dict[NodeId, tuple[ModelUpdate, int]] = {}
        self._missing: dict[NodeId, None] = {}  # members of the round that are waited for
        self._away: dict[NodeId, None] = {}  # those of them that are not connected
        self._absent: dict[NodeId, None] = {}  # members that left and are not waited for
        self._arriving: dict[NodeId, None] = {}  # their updates are with the scheduler
        self._newcomers: dict[NodeId, None] = {}  # they are in the next round
        self._merging = False
        self._merged: dict[NodeId, None] = {}  # during a merge: they are in the next round, too
        self._worked: dict[NodeId, None] = {}  # have ever sent activations or an update
        self._exchanged: dict[NodeId, float] = {}  # last activations or gradient, where there are

    # ---- devices -----------------------------------------------------------------------------

    def planned(self, round_seconds: float, now: float, seed: int = 0) -> None:
        self._predicted, self._began, self._seed = round_seconds, now, seed

    def enters(self, device: NodeId, now: float) -> bool:
        """A device without work has joined. Does it get the model at once?"""
        if device in self._merged:
            return self.participation == 1  # the result of the merge, or whoever is drawn after it
        if self.holds(device):
            self._forget_departure(device)
            return False  # it has done its part of the round, and gets what that is merged into
        if device in self._missing and (device in self._away or self.on_leave == "wait"):
            self._is_back(device, now)
            return True
        self._missing.pop(device, None)
        self._absent.pop(device, None)
        self._newcomers[device] = None
        self._somebody_waits(now)
        return False

    def returned(self, device: NodeId, now: float, *, current: bool) -> None:
        """A device is back with work; ``current``: of the version that is trained now."""
        self._forget_departure(device)
        if device in self._away:
            self._is_back(device, now)
        elif device in self._absent and current:
            del self._absent[device]
            (self._newcomers if self._merging else self._missing)[device] = None
        self._set_deadline()

    def _forget_departure(self, device: NodeId) -> None:
        self._left_behind = tuple(other for other in self._left_behind if other != device)

    def _is_back(self, device: NodeId, now: float) -> None:
        self._away.pop(device, None)
        self._began = now  # time for which a round stood still is not a measure of it
        self._since = None if self._since is None else now
        self._set_deadline()

    def handed_in(self, device: NodeId) -> None:
        """Its update is with the scheduler."""
        self._worked[device] = self._arriving[device] = None

    def exchanged(self, device: NodeId, now: float) -> None:
        """Activations of it have come, or it was sent their gradient."""
        self._worked[device] = None
        self._exchanged[device] = now

    def _is_silent(self, device: NodeId, now: float) -> bool:
        """A device that trains without the server may be silent for a whole round."""
        last = self._exchanged.get(device)
        patience = max(SILENT, self._predicted)
        return last is not None and now - max(last, self._began) > patience

    def left(self, device: NodeId, now: float, *, awaited: bool = False) -> None:
        """``awaited``: the server was restarted, and all devices are expected back."""
        arriving = device in self._arriving and device in self._missing
        if device in self._pool and self.folds and awaited:
            return  # its update is in the sum, and that is in the checkpoint
        if self.on_leave != "drop" and not awaited and (arriving or device in self._pool):
            if self.on_leave == "keep":
                self._left_behind = (*self._left_behind, device)
            return  # it has done its part of the round
        self._arriving.pop(device, None)
        self._newcomers.pop(device, None)
        handed_in = self._pool.pop(device, None) is not None
        waits = awaited or (self.on_leave == "wait" and device in self._worked)
        if not handed_in and not awaited and device in self._missing:
            waits = waits and not self._is_silent(device, now)
        if device in self._merged and not waits:
            del self._merged[device]
        elif handed_in or device in self._missing:
            self._away.pop(device, None)
            if waits:
                self._missing[device] = self._away[device] = None
            else:
                self._missing.pop(device, None)
                self._absent[device] = None
        elif awaited and self._merging and device in self._worked and device not in self._merged:
            self._newcomers[device] = None  # too late for the round that is being merged
        if not self._pool and not self._newcomers:
            self._since = None  # nobody waits: the time runs from the next one who does
        self._set_deadline()

    def give_up(self, devices: Iterable[NodeId]) -> None:
        """They were expected back after a restart, and are not waited for any longer."""
        if self.on_leave != "wait":
            for device in devices:
                if device in self._pool:  # in the sum, from before the restart
                    self._left_behind = (*self._left_behind, device)
                self._merged.pop(device, None)
                self._newcomers.pop(device, None)
                self._away.pop(device, None)
                self._missing.pop(device, None)
        self._set_deadline()

    # ---- updates -----------------------------------------------------------------------------

    def offer(self, offer: Offer) -> Decision:
        device, settled = offer.device, ((offer.device, offer.update),)
        self._arriving.pop(device, None)
        counted = self.folds and device in self._pool
        # Of an earlier round, of a history that no longer exists, or beside one that is in the sum.
        if offer.staleness or counted:
            if device in self._pool:  # it is answered with the merge
                return Decision(settled=settled, refused=True)
            if device in self._left_behind:  # it is gone, and nothing of it counts
                self._forget_departure(device)
                del self._missing[device]
                self._absent[device] = None
                return Decision(settled=settled, refused=True)
            if device in self._missing:  # it is in this round, and has not had its model yet
                return Decision(refresh=(device,), settled=settled, refused=True)
            self._absent.pop(device, None)
            self._newcomers[device] = None
            self._somebody_waits(offer.now)
            return Decision(settled=settled, refused=True)
        if not self._pool:
            self._first = offer.now - self._began
        self._missing.pop(device, None)
        self._absent.pop(device, None)
        self._newcomers.pop(device, None)  # it came back during a merge that failed
        kept = offer.update.without_tensors() if self.folds else offer.update
        self._pool[device] = (kept, offer.samples)
        self._somebody_waits(offer.now)
        decision = self.reconsider(offer.now)
        if not self.folds:
            return decision
        return replace(decision, fold=Part(device, offer.samples, offer.update.data))

    def holds(self, device: NodeId) -> bool:
        return device in self._pool or device in self._arriving

    def reconsider(self, now: float) -> Decision:
        late: tuple[NodeId, ...] = ()
        if self.deadline is not None and now >= self.deadline:
            late = tuple(d for d in self._missing if not self._is_excused(d))
            for device in late:
                del self._missing[device]
            self._since = now  # for those whose updates are with the scheduler
        if self._missing:
            self._set_deadline()
            return Decision(late=late) if late else WAIT
        if self._pool:
            return self._open(late)
        if self._newcomers:
            return Decision(begins=self._begin(self._newcomers, self._newcomers, now), late=late)
        return Decision(late=late) if late else WAIT

    def _is_excused(self, device: NodeId) -> bool:
        return device in self._away or device in self._arriving

    def _open(self, late: tuple[NodeId, ...]) -> Decision:
        devices = tuple(sorted(self._pool))
        total = sum(self._pool[d][1] for d in devices)
        parts = tuple(Part(d, self._pool[d][1] / total, self._pool[d][0].data) for d in devices)
        settled = tuple((d, self._pool[d][0]) for d in devices)
        here = (d for d in devices if d not in self._left_behind)
        self._merging, self._merged, self._left_behind = True, dict.fromkeys(here), ()
        self._pool.clear()
        self.deadline = self._since = None
        # Where members are drawn, that is after the merge, and then they get the model.
        refresh = devices if self.participation == 1 else ()
        merge = (FoldedMerge if self.folds else Merge)(0.0, parts, refresh)
        return Decision(merge, refresh, settled, late=late)

    def merged(self, present: Container[NodeId], now: float) -> tuple[NodeId, ...]:
        """The next round begins; returns those of its members that did not get the merged model."""
        newcomers = tuple(self._newcomers)
        candidates = self._merged | self._newcomers
        self._merging, self._merged = False, {}
        members = self._begin(candidates, present, now)
        self._away = {device: None for device in members if device not in present}
        self._set_deadline()
        return newcomers if self.participation == 1 else members

    def _begin(
        self, candidates: dict[NodeId, None], present: Container[NodeId], now: float
    ) -> tuple[NodeId, ...]:
        members = self._drawn(candidates)
        self._missing = dict.fromkeys(members)
        others = [d for d in candidates if d not in self._missing and d in present]
        self._newcomers, self._absent, self._away = dict.fromkeys(others), {}, {}
        self._began, self._first = now, 0.0
        self._since = now if others else None
        self._set_deadline()
        return members

    def _drawn(self, candidates: Iterable[NodeId]) -> tuple[NodeId, ...]:
        everybody = tuple(candidates)
        self._round += 1
        if self.participation == 1:
            return everybody
        lots = {d: derive(self._seed, "participation", self._round, d) for d in everybody}
        count = max(1, round(self.participation * len(everybody)))
        return tuple(sorted(sorted(everybody, key=lambda d: (lots[d], d))[:count]))

    # ---- time --------------------------------------------------------------------------------

    def _somebody_waits(self, now: float) -> None:
        self._since = now if self._since is None else self._since
        self._set_deadline()

    def _set_deadline(self) -> None:
        silent = len(self._missing) > len(self._away)
        waits = self._since is not None and silent
        self.deadline = self._since + self.patience if waits and self._since is not None else None

    @property
    def patience(self) -> float:
        """Seconds."""
        if self.timeout is not None:
            return self.timeout
        return max(LEAST_PATIENCE, PATIENCE * max(self._predicted, self._first))

    def check(self) -> None:
        waits = bool(self._pool or self._newcomers)
        if waits != (self._since is not None) and not self._merging:
            raise InvariantBroken(f"{len(self._pool)} updates wait since {self._since}")
        silent = self._missing.keys() - self._away.keys()
        if (self.deadline is not None) != (self._since is not None and bool(silent)):
            raise InvariantBroken(f"{len(silent)} devices are waited for until {self.deadline}")
        if self._away.keys() - self._missing.keys():
            raise InvariantBroken("a device that is not in the round is expected back")
        if set(self._left_behind) - self._pool.keys() - self._arriving.keys():
            raise InvariantBroken(f"no update is left behind by {self._left_behind}")
        places = [*self._pool, *self._missing, *self._newcomers, *self._absent]
        if len(places) != len(set(places)):
            raise InvariantBroken(f"a device has two places at the barrier: {sorted(places)}")
