"""Runs on a Ray cluster: one that is running, or one that is started on this machine.

A run is a task. Ray finds a machine with its share of CPUs and GPUs, and starts it again elsewhere
if its worker is lost; it then resumes from its last checkpoint. Progress comes through a mailbox,
an actor beside this process, where runs also learn that they should stop.

Machines that see the comparison's folder (a shared file system) write into it. On others a run
works in a temporary folder that comes back when it ends; there a lost run begins again.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from fedoptima.comparison.execution import Line, Order, RunState, execute, workers_of
from fedoptima.comparison.pool import Lost
from fedoptima.comparison.sending import cannot_be_sent
from fedoptima.config.schema import Recipe
from fedoptima.core.errors import ConfigError
from fedoptima.data.layouts import DATA_VARIABLE
from fedoptima.experiments.given import Given
from fedoptima.trace.run_folder import RunFiles, write_whole
from fedoptima.version import __version__

LOG = logging.getLogger("fedoptima.comparison")

_POLL_INTERVAL = 0.1  # seconds between two looks at the mailbox
_MARK = ".cluster-"
_ASK = 1.0  # seconds between two questions of a run whether it should stop

Ended = tuple[RunState, bytes | None]  # with the files that a run leaves, if they are elsewhere


@dataclass(frozen=True)
class RayShare:
    """What one run takes of the cluster. Parts of a GPU are shared: 0.25 is four runs on one."""

    cpus: float | None = None  # None: the recipe's threads
    gpus: float | None = None  # None: 1 if the recipe computes on a GPU
    retries: int = 3  # how often a run is started again after its worker was lost

    def for_recipe(self, recipe: Recipe) -> RayShare:
        kind, _, index = recipe.device.partition(":")
        if index:
            raise ConfigError(
                f"device = {recipe.device!r}: on a cluster Ray chooses the GPU; use {kind!r}"
            )
        gpus = (1.0 if kind == "cuda" else 0.0) if self.gpus is None else self.gpus
        if kind == "cuda" and gpus == 0:
            raise ConfigError("gpus = 0: the recipe computes on a GPU; give its runs a share of it")
        if gpus > 1 and gpus != int(gpus):
            raise ConfigError(f"gpus = {gpus:g}: Ray shares one GPU, or gives whole ones")
        cpus = float((recipe.threads or 1) * workers_of(recipe)) if self.cpus is None else self.cpus
        if cpus < 0 or gpus < 0 or self.retries < 0 or cpus + gpus == 0:
            raise ConfigError(f"{self}: a run needs some of a CPU, and nothing is below 0")
        return replace(self, cpus=cpus, gpus=gpus)


@dataclass(frozen=True)
class Home:
    """Where runs were ordered, for machines that have the same files."""

    mark: Path  # a file in the comparison's folder: it is seen where that is shared
    current: Path  # what relative paths in a recipe begin from
    data: str | None  # where data sets are, unless a machine has its own setting
    modules: tuple[str, ...]  # where code that a recipe names is looked for, after the machine's

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        if self.data is not None:
            os.environ.setdefault(DATA_VARIABLE, self.data)
        added = [path for path in self.modules if path not in sys.path]
        sys.path.extend(added)
        try:
            with contextlib.chdir(self.current if self.current.is_dir() else "."):
                yield
        finally:
            for path in added:
                sys.path.remove(path)


class RayPool:
    """``jobs``: runs at a time; None: as many as the cluster has room for."""

    def __init__(self, share: RayShare, jobs: int | None, folder: Path, given: Given) -> None:
        try:
            import ray
        except ImportError as error:
            raise ConfigError("--on ray needs ray: pip install 'fedoptima[ray]'") from error
        self._ray = ray
        self._share, self._jobs, self._given = share, jobs, given
        self._home = Home(
            mark=folder.resolve() / f"{_MARK}{uuid4().hex}",
            current=Path.cwd(),
            data=os.environ.get(DATA_VARIABLE),
            modules=tuple(sys.path),
        )
        self._tasks: dict[Any, int] = {}  # which run each is
        self._orders: dict[int, Order] = {}
        self._states: dict[int, RunState] = {}

    def __enter__(self) -> RayPool:
        ray = self._ray
        # Where a result is printed, Ray would print what it has to say about lost machines.
        self._stdout = contextlib.redirect_stdout(sys.stderr)
        self._stdout.__enter__()
        self._connected = not ray.is_initialized()
        if self._connected:
            # A cluster that is started here reports to nobody.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            logging.getLogger("ray").setLevel(logging.ERROR)
            # A running cluster (RAY_ADDRESS, or one of this machine), or else a new one.
            with _own_signals():
                ray.init(log_to_driver=False, configure_logging=False)
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        self._mailbox = ray.remote(num_cpus=0, scheduling_strategy=here)(Mailbox).remote()
        self._run = ray.remote(
            num_cpus=self._share.cpus,
            num_gpus=self._share.gpus,
            max_retries=self._share.retries,
        )(run_task)
        self._check_room()
        self._shared = self._put(self._given)
        for left in self._home.mark.parent.glob(f"{_MARK}*"):  # by a command that was killed
            left.unlink(missing_ok=True)
        self._home.mark.touch()
        return self

    def __exit__(self, *error: object) -> None:
        self._home.mark.unlink(missing_ok=True)
        if self._connected:
            self._ray.shutdown()  # ends whatever of ours still runs
        else:
            for task in self._tasks:
                self._ray.cancel(task, force=True)
            self._ray.kill(self._mailbox)
        self._stdout.__exit__(None, None, None)

    def has_room(self) -> bool:
        return self._jobs is None or len(self._tasks) < self._jobs

    def start(self, index: int, order: Order) -> None:
        order = replace(order, directory=order.directory.resolve())
        begun = pack(order.directory) if RunFiles(order.directory).begun else None
        task = self._run.options(name=f"{order.label}, seed {order.recipe.seed}").remote(
            __version__, index, order, self._home, begun, self._mailbox, self._shared
        )
        self._tasks[task] = index
        self._orders[index], self._states[index] = order, RunState.of(order)

    def news(self) -> Iterator[tuple[int, RunState | Lost]]:
        time.sleep(_POLL_INTERVAL)
        # First who has ended: their last messages are in the mailbox by then, and say less.
        ended, _ = self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=0)
        for index, state in self._ray.get(self._mailbox.take.remote()):
            if index not in self._orders:  # it has ended, and this was still on its way
                continue
            before = self._states[index]
            if state.phase == "starting" and before.phase != "waiting":
                name = f"{state.label} (seed {state.seed})"
                LOG.warning("%s: its worker was lost; it has been started again", name)
            self._states[index] = state
            if not state.over:  # the task itself says how it ended
                yield index, state
        for task in ended:
            index = self._tasks.pop(task)
            yield index, self._result(task, index)

    def stop(self) -> None:
        self._ray.get(self._mailbox.stop.remote())
        for task, index in self._tasks.items():
            if self._states[index].phase == "waiting":
                self._ray.cancel(task)

    def _result(self, task: Any, index: int) -> RunState | Lost:
        errors, order = self._ray.exceptions, self._orders.pop(index)
        try:
            state, files = self._ray.get(task)
        except errors.TaskCancelledError:
            return replace(self._states[index], phase="stopped")
        except errors.RayTaskError as error:  # not even its order could be read there
            reason = str(error).strip().splitlines()[-1]
            return Lost(f"{reason}; is the same fedoptima installed on all machines?")
        except errors.RayError as error:
            reason = str(error).strip().partition("\n")[0]
            return Lost(f"its worker was lost {1 + self._share.retries} times: {reason}")
        if files is not None:
            unpack(files, order.directory)
        ended: RunState = state
        return ended

    def _put(self, given: Given) -> Any:
        """Once, for all machines. Also what was defined in a notebook: Ray sends its code."""
        try:
            return self._ray.put(given)
        except TypeError as error:  # with a long account of what is in what
            raise cannot_be_sent(given, str(error).partition("\n")[0]) from error

    def _check_room(self) -> None:
        """A run that no machine has room for would wait forever."""
        wanted = {"CPU": self._share.cpus or 0.0, "GPU": self._share.gpus or 0.0}
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if any(all(node.get(k, 0.0) >= v for k, v in wanted.items()) for node in nodes):
            return
        most = {k: max(node.get(k, 0.0) for node in nodes) for k in wanted}
        LOG.warning(
            "no machine of the cluster has room for a run (%g CPUs, %g GPUs; the largest have "
            "%g CPUs, %g GPUs): runs wait until one joins, or give them less with --cpus and "
            "--gpus",
            *wanted.values(),
            *most.values(),
        )


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Ray takes SIGTERM, which asks a comparison to stop where it can be resumed."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


def pack(directory: Path) -> bytes:
    """The run's folder, and what is written beside it if it crashes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:  # not compressed: the large files are already
        for path in (*sorted(directory.rglob("*")), _crash_report(directory)):
            if path.is_file():
                archive.write(path, path.relative_to(directory.parent))
    return buffer.getvalue()


def unpack(files: bytes, directory: Path) -> None:
    """In place of what was there, all at once: after a kill it is the one or the other."""
    with tempfile.TemporaryDirectory(prefix=".incoming-", dir=directory.parent) as temporary:
        with zipfile.ZipFile(io.BytesIO(files)) as archive:
            archive.extractall(temporary)
        for path in Path(temporary).iterdir():
            place = directory.parent / path.name
            if place.is_dir():
                place.rename(Path(temporary) / "replaced")
            path.rename(place)


def _crash_report(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}.error.txt")


# ---- on the cluster --------------------------------------------------------------------------


class Mailbox:
    """An actor: what runs say, and whether they should stop."""

    def __init__(self) -> None:
        self._news: list[tuple[int, RunState]] = []
        self._stopped = False

    def put(self, index: int, state: RunState) -> None:
        self._news.append((index, state))

    def take(self) -> list[tuple[int, RunState]]:
        news, self._news = self._news, []
        return news

    def stop(self) -> None:
        self._stopped = True

    def stopped(self) -> bool:
        return self._stopped


class _MailboxLine:
    """Never waits for an answer: Ray would give the CPU of a task that waits to another one."""

    def __init__(self, index: int, mailbox: Any) -> None:
        self._index, self._mailbox = index, mailbox
        self._asked = 0.0
        self._answer: Future[bool] | None = None

    def send(self, state: RunState) -> None:
        self._mailbox.put.remote(self._index, state)

    def stopped(self) -> bool:
        now = time.monotonic()
        if self._answer is None and now - self._asked >= _ASK:
            self._asked = now
            self._answer = self._mailbox.stopped.remote().future()
        if self._answer is None or not self._answer.done():
            return False
        answer, self._answer = self._answer, None
        return answer.exception() is not None or answer.result()  # or nobody is there any more


def run_task(
    version: str,
    index: int,
    order: Order,
    home: Home,
    begun: bytes | None,
    mailbox: Any,
    given: Given,
) -> Ended:
    """``begun``: the files of an unfinished run, for machines that do not see them."""
    logging.getLogger("fedoptima").addHandler(logging.NullHandler())  # whoever ordered it logs
    if version != __version__:
        where = socket.gethostname()
        error = f"{where} has fedoptima {__version__} and not {version}; install the same there"
        return replace(RunState.of(order), phase="failed", error=error), None
    line = _MailboxLine(index, mailbox)
    with home.entered():
        if home.mark.exists():
            return execute(order, line, given), None
        return away(order, begun, line, given)


def away(order: Order, begun: bytes | None, line: Line, given: Given) -> tuple[RunState, bytes]:
    """On a machine that does not see the folder."""
    with tempfile.TemporaryDirectory(prefix="fedoptima-") as temporary:
        directory = Path(temporary) / order.directory.name
        if begun is not None:
            unpack(begun, directory)
        state = execute(replace(order, directory=directory), line, given)
        summary = RunFiles(directory).summary
        if summary.is_file():  # it says where the run is
            plain = json.loads(summary.read_text()) | {"directory": str(order.directory)}
            write_whole(summary, json.dumps(plain, indent=1))
        return state, pack(directory)
