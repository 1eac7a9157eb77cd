"""Merges that withstand hostile devices: which part of them is decided without tensors.

The engine compares updates and may refuse some; which ones, it says in the job's text. A refused
update counts as little as one that came too late: no version, no epoch, and its device is answered.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from fedoptima.core.effects import Effect, Note, NoteKind
from fedoptima.core.events import JobDone
from fedoptima.core.jobs import BasedMerge, CutMerge, Merge, Part, RobustMerge
from fedoptima.core.membership import Roster
from fedoptima.core.messages import ModelUpdate
from fedoptima.core.progress import Progress
from fedoptima.core.types import NodeId, Payload

Robust = Literal["none", "clip", "refuse"]
RobustBarrier = Literal["none", "clip", "refuse", "trimmed_mean", "median"]


def based(
    merge: Merge,
    settled: Sequence[tuple[NodeId, ModelUpdate]],
    base_of: Callable[[NodeId, int], Payload | None],
    epochs_of: Callable[[NodeId, int], float],
    robust: bool,
) -> BasedMerge:
    """``merge``, with the models that the updates are to be compared with or are changes of.

    ``base_of``: the model that a device was sent, by version; ``epochs_of``: what training on so
    many samples is of an epoch, for a ``robust`` merge.
    """
    updates = dict(settled)
    known = [updates.get(part.device) for part in merge.parts]
    devices = [part.device for part in merge.parts]
    whole = (merge.keep, merge.parts, merge.refresh, merge.server_optimizer)
    bases = tuple(
        None if update is None else base_of(device, update.version)
        for device, update in zip(devices, known, strict=True)
    )
    if isinstance(merge, CutMerge):
        return replace(merge, bases=bases)
    if not robust:
        return BasedMerge(*whole, bases=bases)
    # What a buffer took earlier was counted then.
    epochs = tuple(
        0.0 if update is None else epochs_of(device, update.processed)
        for device, update in zip(devices, known, strict=True)
    )
    return RobustMerge(*whole, bases=bases, epochs=epochs)


def book(merge: RobustMerge, text: str, roster: Roster, progress: Progress) -> list[Effect]:
    """Count what was merged; what was refused is noted and counts for nothing."""
    refused, faulty = refusals(text), faults(text)
    notes: list[Effect] = []
    shares = roster.shares
    for number, (part, epochs) in enumerate(zip(merge.parts, merge.epochs, strict=True)):
        if number in faulty:
            continue
        if number not in refused:
            progress.trained(epochs)
            continue
        notes.append(Note(NoteKind.OUTLIER_REFUSED, part.device, refused[number]))
        if part.device in roster.members:
            share = shares.counted(part.device) / shares.total
            progress.refused(part.device, epochs, share=share, max_delay=None)
    return notes


def as_text(refused: Mapping[int, str], faulty: Mapping[int, str] | None = None) -> str:
    """The parts of a merge that were left out, by number, and why.

    Of ``refused`` ones only the update is; the devices of ``faulty`` ones are to be dropped.
    """
    left_out = {"refused": refused, "faulty": faulty or {}}
    plain = {kind: {str(n): why for n, why in parts.items()} for kind, parts in left_out.items()}
    return json.dumps(plain) if refused or faulty else ""


def merged_parts(done: JobDone) -> list[Part]:
    """The parts of a merge without those that were left out."""
    if not isinstance(done.job, Merge):
        return []
    left_out = refusals(done.text) | faults(done.text)
    return [part for number, part in enumerate(done.job.parts) if number not in left_out]


def refusals(text: str) -> dict[int, str]:
    return _read(text, "refused")


def faults(text: str) -> dict[int, str]:
    return _read(text, "faulty")


def _read(text: str, kind: str) -> dict[int, str]:
    return {int(n): why for n, why in json.loads(text)[kind].items()} if text else {}
