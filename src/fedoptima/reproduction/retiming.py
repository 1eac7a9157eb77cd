"""PiPar's training with few parts, shown with the times of its authors' number of parts.

By that number a batch of 100 has up to 50 parts, and training takes hours to simulate. Behind a
barrier the number of parts changes when a round ends and not what is in it, except that batch
normalisation sees a part at a time. So PiPar is trained with a few large parts, which normalisation
likes better than many small ones, and its curve gets the time of an epoch with the authors' number
from the dry run of another figure (`times`): both in its favour.

Not `comparison.rescaling`, which is exact and therefore needs a dry run of as many epochs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedoptima.reproduction.catalogue import Catalogue
from fedoptima.reproduction.planned import Choice, Planned, runs_of
from fedoptima.reproduction.records import Record, Recorded

METHOD = "pipar"
_LEARNED = ("accuracy", "best_accuracy", "test_accuracy", "epochs")


class Retimed:
    """Recorded runs, as figures show them."""

    def __init__(
        self, catalogue: Catalogue, queue: Mapping[str, Sequence[Planned]], records: Recorded
    ) -> None:
        self._records = records
        self._dry: dict[str, str] = {}  # of a run that is trained: the dry run that has its times
        for name, runs in queue.items():
            figure = catalogue.figures[name]
            if figure.times:
                dry = {
                    (run.workload, run.case): run.id
                    for run in runs_of(catalogue, catalogue.figures[figure.times], Choice())
                }
                self._dry |= {
                    run.id: dry[run.workload, run.case]
                    for run in runs
                    if run.case.method == METHOD and (run.workload, run.case) in dry
                }

    def get(self, run: str) -> Record | None:
        """PiPar's with the times of its dry run, if that is recorded; others as they are."""
        record = self._records.get(run)
        dry = self._records.get(self._dry[run]) if run in self._dry else None
        return record if record is None or dry is None else retimed(record, dry)


def retimed(trained: Record, dry: Record) -> Record:
    """What was learned, at the dry run's pace."""
    factor = _pace(dry) / _pace(trained)
    figures = {**dry.figures, **{name: trained.figures.get(name) for name in _LEARNED}}
    figures["seconds"] = _pace(dry) * _number(trained, "epochs")
    curve = [(seconds * factor, epochs, accuracy) for seconds, epochs, accuracy in trained.curve]
    return replace(trained, figures=figures, curve=curve)


def _pace(record: Record) -> float:
    """Seconds of an epoch."""
    return _number(record, "seconds") / _number(record, "epochs")


def _number(record: Record, name: str) -> float:
    value = record.figures[name]
    assert value is not None
    return value
