"""What all trackers have in common. A run never fails, and never waits, because of one.

The run's own thread hands each tracker immutable moments, so a thread that serves or sends them can
read them at any time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fedoptima.analysis.metrics import Moment
from fedoptima.analysis.summary import Summary
from fedoptima.config.schema import Recipe
from fedoptima.trace.description import Mode

LOG = logging.getLogger("fedoptima.tracking")

_EVERY = 1.0  # seconds between two moments, at least where nothing was evaluated
_SHARE = 0.02  # of the run's time that taking them may cost


@dataclass(frozen=True)
class Subject:
    """What is tracked."""

    recipe: Recipe
    folder: Path
    mode: Mode
    versions: Mapping[str, str]  # of what it runs with, by package
    resumed: bool = False

    @property
    def name(self) -> str:
        return self.folder.resolve().name


@dataclass(frozen=True)
class Ending:
    """A run that has come to its end."""

    summary: Summary
    tags: Mapping[str, str]  # why it ended, and the digests
    files: Sequence[Path]


class Tracker(Protocol):
    def observe(self, moment: Moment) -> None: ...
    def finish(self, ending: Ending) -> None: ...
    def close(self) -> None: ...


class Tracking:
    """All trackers of a run; one that fails is left out from then on, and said so once."""

    def __init__(
        self, trackers: Sequence[Tracker], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._trackers = list(trackers)
        self._clock = clock
        self._next = 0.0
        self._evaluations = 0

    @property
    def wanted(self) -> bool:
        return bool(self._trackers)

    def look(self, evaluations: int, take: Callable[[], Moment]) -> None:
        """Call often; ``take`` is called if there is a tracker and something new."""
        now = self._clock()
        if not self._trackers or (now < self._next and evaluations == self._evaluations):
            return
        moment = take()
        self._all(lambda tracker: tracker.observe(moment))
        self._evaluations = evaluations
        after = self._clock()
        self._next = after + max(_EVERY, (after - now) / _SHARE)

    def finish(self, ending: Ending) -> None:
        self._all(lambda tracker: tracker.finish(ending))

    def close(self) -> None:
        self._all(lambda tracker: tracker.close())

    def _all(self, work: Callable[[Tracker], None]) -> None:
        for tracker in list(self._trackers):
            try:
                work(tracker)
            except Exception as error:
                self._leave_out(tracker, error)

    def _leave_out(self, tracker: Tracker, error: Exception) -> None:
        self._trackers.remove(tracker)
        name = type(tracker).__name__
        LOG.warning("%s fails and is left out; the run continues: %s", name, error)
        with suppress(Exception):
            tracker.close()
