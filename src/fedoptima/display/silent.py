"""What a view sees, and views that show nothing; those that show something build on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from fedoptima.analysis.curve import CourseAccount
    from fedoptima.analysis.idle_time import UsageAccount
    from fedoptima.analysis.quality import Quality
    from fedoptima.core.progress import Progress
    from fedoptima.trace.record import RecordProgress


class Watch(Protocol):
    """What a view sees of a simulation that goes on."""

    @property
    def now(self) -> float: ...
    @property
    def events(self) -> int: ...
    @property
    def progress(self) -> Progress: ...
    @property
    def course(self) -> CourseAccount: ...
    @property
    def usage(self) -> UsageAccount: ...


class RunState(Protocol):
    """What a view sees of one run of many."""

    @property
    def label(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def phase(self) -> str: ...
    @property
    def over(self) -> bool: ...
    @property
    def share(self) -> float | None: ...
    @property
    def seconds(self) -> float: ...
    @property
    def epochs(self) -> float: ...
    @property
    def quality(self) -> Quality | None: ...
    @property
    def error(self) -> str | None: ...


class SilentView:
    """A view of one run: it takes what `fedoptima.simulate` tells while it works."""

    def __enter__(self) -> SilentView:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def reading(self, what: str, done: int, total: int) -> None:
        pass

    def training(self, watch: Watch) -> None:
        pass


class SilentPool:
    """A view of many runs."""

    def __enter__(self) -> SilentPool:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def show(self, states: Sequence[RunState]) -> None:
        pass


class SilentCounter:
    """A view of a run's records that are gone through."""

    def __enter__(self) -> RecordProgress:
        return lambda *_: None

    def __exit__(self, *error: object) -> None:
        pass
