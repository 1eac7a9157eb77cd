"""The tracking options of everything that trains: where else the run is shown, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedoptima.cli.options import track_extra
from fedoptima.display.console import stderr
from fedoptima.trace.description import Mode

if TYPE_CHECKING:
    from fedoptima.analysis.accounts import Accounts
    from fedoptima.config.schema import Recipe
    from fedoptima.core.types import NodeId
    from fedoptima.experiments.result import Result
    from fedoptima.experiments.server_run import ServerWatch
    from fedoptima.experiments.simulated_run import SimulationWatch
    from fedoptima.tracking.tracker import Subject, Tracker, Tracking


@dataclass(frozen=True)
class TrackingOptions:
    metrics_port: int | None = None
    tensorboard: Path | None = None
    mlflow: str | None = None

    def open(
        self, recipe: Recipe, folder: Path, *, mode: Mode, resumed: bool, quiet: bool
    ) -> RunTracking:
        """Before anything is trained or written: what cannot work is a `ConfigError` now."""
        from fedoptima.experiments.describe import versions
        from fedoptima.tracking.tracker import Subject, Tracking

        subject = Subject(recipe, folder, mode, versions(), resumed)
        with ExitStack() as opened:
            trackers = self._trackers(subject, opened, quiet)
            opened.pop_all()
        return RunTracking(folder, Tracking(trackers))

    def _trackers(self, subject: Subject, opened: ExitStack, quiet: bool) -> list[Tracker]:
        """On ``opened``: how to close those there are, should the next one fail."""
        trackers: list[Tracker] = []

        def add(tracker: Tracker) -> None:
            trackers.append(tracker)
            opened.callback(tracker.close)

        if self.metrics_port is not None:
            with track_extra("--metrics-port"):
                from fedoptima.tracking.prometheus import Prometheus
            page = Prometheus(subject, self.metrics_port)
            add(page)
            if not quiet:
                stderr().print(f"metrics on {page.address}", soft_wrap=True)
        if self.tensorboard is not None:
            with track_extra("--tensorboard"):
                from fedoptima.tracking.tensorboard import TensorBoard
            add(TensorBoard(subject, self.tensorboard))
        if self.mlflow is not None:
            with track_extra("--mlflow"):
                from fedoptima.tracking.mlflow import MLflow

                add(MLflow(subject, self.mlflow))
        return trackers


class RunTracking:
    """From a run's watch to its trackers."""

    def __init__(self, folder: Path, tracking: Tracking) -> None:
        self._folder = folder
        self._tracking = tracking

    def __enter__(self) -> RunTracking:
        return self

    def __exit__(self, *error: object) -> None:
        self._tracking.close()

    def simulation_observer(
        self, view: Callable[[SimulationWatch], None]
    ) -> Callable[[SimulationWatch], None]:
        """An observer for the view and the trackers."""

        def observe(watch: SimulationWatch) -> None:
            machine = watch.simulation.server.machine
            self._look(watch.accounts, machine.members, watch.description.activation_cap)
            view(watch)

        return observe if self._tracking.wanted else view

    def server_observer(
        self, view: Callable[[ServerWatch], None] | None
    ) -> Callable[[ServerWatch], None] | None:
        """None: there is no observer, and nothing needs to be counted."""

        def observe(watch: ServerWatch) -> None:
            members = watch.node.machine.members
            failing = frozenset(watch.live.fleet.failing)
            self._look(watch.live.accounts, members, watch.description.activation_cap, failing)
            if view is not None:
                view(watch)

        return observe if self._tracking.wanted else view

    def _look(
        self,
        accounts: Accounts,
        members: Iterable[NodeId],
        cap: int | None,
        failing: frozenset[NodeId] = frozenset(),
    ) -> None:
        from fedoptima.analysis.metrics import Moment

        def take() -> Moment:
            return Moment(accounts.summary(), frozenset(members), cap, failing)

        self._tracking.look(len(accounts.course.points), take)

    def finish(self, result: Result) -> None:
        from fedoptima.experiments.run_directory import RunDirectory
        from fedoptima.tracking.tracker import Ending

        folder = RunDirectory(self._folder)
        tags = {
            "reason": result.reason,
            "trace_digest": result.trace_digest,
            "weights_digest": result.weights_digest,
        }
        files = (folder.config, folder.summary, folder.metrics)
        self._tracking.finish(Ending(result.summary, tags, files))
