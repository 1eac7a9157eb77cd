"""What is known of an update when it is decided on, and what a refusal means."""

from __future__ import annotations

from fedoptima.core.aggregation import Offer
from fedoptima.core.cuts import Cuts
from fedoptima.core.distribution import Distribution
from fedoptima.core.effects import Note, NoteKind
from fedoptima.core.influence import Share
from fedoptima.core.membership import Roster
from fedoptima.core.messages import ModelUpdate
from fedoptima.core.progress import Progress
from fedoptima.core.types import NodeId


def offer_of(
    device: NodeId,
    update: ModelUpdate,
    roster: Roster,
    models: Distribution,
    share: Share,
    cuts: Cuts | None,
    now: float,
) -> Offer:
    version, age = models.version, models.age
    behind = age.behind(device, update.version, version)
    return Offer(
        *(device, update, roster.shares.counted(device), version, now, share),
        age=behind,
        missed=age.missed(device),
        ages=() if cuts is None else cuts.ages(device, update.cut, behind),
    )


def refuse(offer: Offer, roster: Roster, progress: Progress, max_delay: int) -> Note:
    if offer.staleness > 0:  # else the server went back to an older checkpoint: only once
        shares = roster.shares
        progress.refused(
            offer.device,
            shares.epochs(offer.device, offer.update.processed),
            share=shares.portion(offer.device),
            max_delay=max_delay,
        )
    return Note(NoteKind.UPDATE_REFUSED, offer.device, offer.lateness)
