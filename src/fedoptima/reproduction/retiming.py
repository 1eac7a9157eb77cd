"""What was learned by another run, or in another form, shown with the times of a dry run.

PiPar is trained with a few large parts of a batch: by its authors' number there are up to 50, and
training takes hours to simulate. Behind a barrier the number of parts changes when a round ends and
not what is in it, except that batch normalisation, which sees a part at a time, likes large ones.
Its curve gets the time of an epoch with the authors' number from the dry run of another figure
(`times`): both in its favour.

Methods that do the same arithmetic on the same batches learn the same, wherever the model is cut
and whenever results arrive: with a barrier, the same settings and no device that leaves. So one of
them is trained, and the others (`learns_as`) have what it learned, at the pace of their dry runs.

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
        self._dry: dict[str, str] = {}  # of a run: the dry run that has its times
        self._learned_by: dict[str, str] = {}  # of a run that is not trained: that which is
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
                    if (run.case.method == METHOD or run.learned_by)
                    and (run.workload, run.case) in dry
                }
                self._learned_by |= {run.id: run.learned_by for run in runs if run.learned_by}

    def get(self, run: str) -> Record | None:
        """PiPar's with the times of its dry run, if that is recorded; others as they are. What is
        not trained: none without its dry run."""
        record = self._records.get(run)
        dry = self._records.get(self._dry[run]) if run in self._dry else None
        if record is None and run in self._learned_by and dry is not None:
            other = self._records.get(self._learned_by[run])
            return None if other is None else replace(retimed(other, dry), id=run)
        return record if record is None or dry is None else retimed(record, dry)

    def at_pace_of(self, run: str, learned: Record) -> Record | None:
        """What another run learned, as if this one had; none without its dry run."""
        dry = self._records.get(self._dry[run]) if run in self._dry else None
        return None if dry is None else retimed(learned, dry)


def retimed(trained: Record, dry: Record) -> Record:
    """What was learned, at the dry run's pace."""
    factor = _pace(dry) / _pace(trained)
    figures = {**dry.figures, **{name: trained.figures.get(name) for name in _LEARNED}}
    figures["seconds"] = _pace(dry) * _number(trained, "epochs")
    curve = [(seconds * factor, epochs, accuracy) for seconds, epochs, accuracy in trained.curve]
    whose = replace(trained, method=dry.method, settings=dry.settings)
    return replace(whose, figures=figures, curve=curve)


def _pace(record: Record) -> float:
    """Seconds of an epoch."""
    return _number(record, "seconds") / _number(record, "epochs")


def _number(record: Record, name: str) -> float:
    value = record.figures[name]
    assert value is not None
    return value
