"""A run's folder: creating it, opening it, and writing the result into it."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from fedoptima.analysis.accounts import summarise
from fedoptima.analysis.summary import Summary
from fedoptima.config.load import validate
from fedoptima.config.schema import MethodConfig, Recipe
from fedoptima.core.errors import ConfigError, RunFailed
from fedoptima.core.stopping import StopRule
from fedoptima.experiments.metrics_file import write_metrics
from fedoptima.experiments.result import Result
from fedoptima.methods.registry import defaults_then
from fedoptima.trace.description import NEW_RUN, Mode, RunDescription, config_text, read_config
from fedoptima.trace.plain_files import read_plain, refuse_links
from fedoptima.trace.reader import read_description
from fedoptima.trace.run_folder import RunFiles, put_on_disk, write_whole
from fedoptima.version import __version__

if TYPE_CHECKING:  # it takes torch, and a dry run may do without
    from torch import Tensor

_log = logging.getLogger(__name__)

PAUSE, STOP = "pause", "stop"  # what an operator may want of a run
STOPPED = "stopped by its operator"
_TAKEN: set[Path] = set()  # folders that this process has locked
_NO_LOCKS = (errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP)  # network file systems without locks


class RunDirectory(RunFiles):
    _config_damaged = False  # and its description is from a copy

    @classmethod
    def create(cls, path: Path, description: RunDescription) -> RunDirectory:
        cls.check_free(path)
        make_folder(path)
        run = cls(path)
        # Whole or not there: a run that was killed at this moment has simply not begun.
        write_whole(run.config, config_text(description))
        return run

    @classmethod
    def check_free(cls, path: Path) -> None:
        unwritten = cls(path).config.with_suffix(".tmp")
        if path.exists() and (not path.is_dir() or set(path.iterdir()) - {unwritten}):
            resumable = cls(path).begun and not cls(path).over
            way_out = f", or resume it with --resume {path}" if resumable else ""
            raise ConfigError(f"{path}: exists already; choose another folder (--out){way_out}")

    @classmethod
    def open(cls, path: Path) -> tuple[RunDirectory, Recipe, bool]:
        """A run that exists: its recipe, and whether it was dry."""
        run = cls(path)
        if not run.begun:
            raise ConfigError(f"{path}: no run found here ({run.config.name} is missing)")
        refuse_links(path)
        known = run.description
        try:
            recipe = validate(Recipe, dict(known.recipe), str(run.config))
        except ConfigError as error:
            made_by = known.versions.get("fedoptima", __version__)
            if made_by == __version__:
                raise
            raise ConfigError(
                f"{error}; fedoptima {made_by} has written it, and this is {__version__}"
            ) from error
        return run, run.as_begun(recipe), known.dry

    def as_begun(self, recipe: Recipe) -> Recipe:
        """With the defaults of the version that began the run, where ours are others."""
        method = recipe.method
        then = defaults_then(method.name, method.options, self.description.options)
        if not then:
            return recipe
        own = MethodConfig(name=method.name, **method.options, **then)
        return recipe.model_copy(update={"method": own})

    def check_material(self, now: Mapping[str, Mapping[str, Any]]) -> None:
        """A run goes on with the model and the data that it began with."""
        from fedoptima.experiments.material import check_same  # takes torch

        data = self.description.recipe.get("data")
        name = data.get("name") if isinstance(data, Mapping) else None
        check_same(self.description.material, now, str(name))

    def check_resumed_by(self, mode: Mode) -> None:
        """A simulation and a run over the network keep different things in their checkpoints."""
        path, own = self.path, self.description.mode
        if own is not mode:
            raise ConfigError(
                f"{path}: is a simulation; `fedoptima simulate` resumes it, or fedoptima.resume"
                if own is Mode.SIMULATED
                else f"{path}: is a run over the network; `fedoptima run` and `fedoptima server` "
                "resume it, or fedoptima.serve"
            )

    @cached_property
    def description(self) -> RunDescription:
        """From config.json or, with a warning, from one of its copies."""
        try:
            return read_config(self.config)
        except ConfigError as error:
            path, found = self._copy_of_description(error)
            _log.warning("%s; what %s says is used", str(error).removesuffix(NEW_RUN), path)
            self._config_damaged = True
            return found

    @property
    def config_text(self) -> str:
        return config_text(self.description)

    def _copy_of_description(self, problem: ConfigError) -> tuple[Path, RunDescription]:
        for path in self.kept_configs():
            with suppress(ConfigError):
                return path, read_config(path)
        with suppress(ConfigError):
            return self.trace, self.started
        raise problem

    @property
    def started(self) -> RunDescription:
        """As the run began: what it was extended to since is not in it."""
        return read_description(self.trace)

    @property
    def first_stop(self) -> StopRule | None:
        """What its recipe had at the beginning, before it was extended; None: nothing was done."""
        if not self.trace.is_file():
            return None
        return validate(Recipe, dict(self.started.recipe), str(self.trace)).stop

    @property
    def saved(self) -> Path:
        """The folder with the state to go on from: a checkpoint's, or that of the end."""
        newer = self.checkpoints.is_dir() and any(self.checkpoints.glob("[0-9]*"))
        return self.checkpoints if newer or not self.last_state.is_dir() else self.last_state

    def extend(self, recipe: Recipe) -> None:
        """The run is not over any more: it goes on with this recipe, which has another ``stop``."""
        extended = replace(self.description, recipe=recipe.model_dump(mode="json"))
        write_whole(self.config, config_text(extended))
        del self.description
        if self.over and self.last_state.is_dir():
            # Left by a kill at the end: they are older than the state of the end.
            with suppress(FileNotFoundError):
                shutil.rmtree(self.checkpoints)
        self.summary.unlink(missing_ok=True)

    def wish(self) -> str | None:
        """The operator's, "pause" or "stop", said once. RunFailed: the folder is gone."""
        try:
            wanted = read_plain(self.control).strip()
        except FileNotFoundError:
            if not (self.config.exists() or self.trace.exists()):
                gone = "was removed while the run was going on, which ends it; start it again"
                raise RunFailed(f"{self.path}: {gone}") from None
            return None
        self.control.unlink(missing_ok=True)
        return wanted

    @property
    def _control_written(self) -> tuple[int, int] | None:
        """Which file it is: one that comes when this process has the run is meant for it."""
        try:
            found = self.control.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns

    @property
    def executed(self) -> bool:
        """A process is executing this run at the moment."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            return not self._lock(descriptor)
        finally:
            os.close(descriptor)

    @contextmanager
    def taken(self, wait: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Locked against other processes: two would cut each other's trace.

        The lock belongs to the process and ends with it, also after a kill. While another process
        has it, ``wait`` is called ten times a second and says whether to wait for its end.
        """
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            old = self._control_written
            while not self._lock(descriptor):
                if not wait():
                    raise ConfigError(
                        f"{self.path}: another process is executing this run; choose another folder"
                    )
                time.sleep(0.1)
                old = self._control_written
            _TAKEN.add(self.path.resolve())
            if old == self._control_written:  # meant for a process that is gone
                self.control.unlink(missing_ok=True)
            self.failure.unlink(missing_ok=True)
            self.disk_failing.unlink(missing_ok=True)
            self.stopped.unlink(missing_ok=True)
            if self._config_damaged:
                with suppress(OSError):
                    write_whole(self.config, config_text(self.description))
            try:
                yield
            finally:
                _TAKEN.discard(self.path.resolve())
        finally:
            os.close(descriptor)

    @property
    def is_ours(self) -> bool:
        """This process has it locked."""
        return self.path.resolve() in _TAKEN

    @staticmethod
    def _lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        return True

    def give_up(self, reason: str) -> None:
        """After a mistake in what was given. One at the start leaves nothing, so that the folder
        can be used again; code of the user's that fails late, as a metric may, loses nothing."""
        if not self.measured:
            self.discard()
            return
        with suppress(OSError):
            self.write_failure(reason)

    def discard(self) -> None:
        """Remove the files of a run that could not start; anything else stays."""
        for file in (
            self.config,
            self.trace,
            self.metrics,
            self.failure,
            self.control,
            self.starts,
        ):
            file.unlink(missing_ok=True)
        for folder in (self.devices, self.logs, self.path):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()

    def begin_process(self, before: int | None) -> int:
        """The number of a process that serves the run: higher than any since the run began, and
        than ``before``, which its checkpoint knows (None: it begins now). It is on disk before it
        is used, so none is given twice, whatever is killed."""
        number = 0 if before is None else before + 1
        if before is not None:
            with suppress(OSError, ValueError):  # an older run has none, and a file may be damaged
                number = max(number, int(read_plain(self.starts)))
        try:
            write_whole(self.starts, str(number + 1), sync=True)
        except OSError:
            self._write_over_starts(number + 1)
        return number

    def _write_over_starts(self, number: int) -> None:
        """In its place: a full disk has room for that, where there is none for another file."""
        try:
            with self.starts.open("r+", encoding="utf-8") as file:
                file.write(str(number))
                file.truncate()
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:  # which must not keep a run from going on
            _log.warning("%s: cannot be written (%s)", self.starts, error.strerror)

    def write_stopped(self, when: str) -> None:
        """For who looks at the run: it has not fallen silent."""
        with suppress(OSError):
            write_whole(self.stopped, f"{when}\n")

    def write_failure(self, reason: str) -> None:
        write_whole(self.failure, f"{reason}\n")

    def write_result(self, result: Result) -> None:
        write_metrics(self.metrics, result.curve)
        if result.weights:
            save_tensors(self.model, dict(result.weights))
        # Last: a run with a summary is over, and what could replace it goes with its checkpoints.
        write_whole(self.summary, result.to_json(), sync=True)
        shutil.rmtree(self.checkpoints, ignore_errors=True)

    def read_result(self) -> Result:
        """Of a run that is over."""
        try:
            plain = json.loads(self.summary.read_text())
            weights = load_tensors(self.model) if self.model.exists() else {}
            return Result.from_plain(plain, self._read_summary(plain), self.path, weights)
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(f"{self.path}: its result is damaged ({error})") from error

    def _read_summary(self, plain: object) -> Summary:
        try:
            return TypeAdapter(Summary).validate_python(plain)
        except ValidationError:  # of an older fedoptima, which wrote fewer figures
            return summarise(self.trace)


def make_folder(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)  # traces and weights are nobody else's business
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be created ({error.strerror}); choose another folder"
        ) from error


def load_tensors(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(path)


def save_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    from fedoptima.engine import checkpoint

    temporary = path.with_suffix(".tmp")
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    checkpoint.save_tensors(temporary, contiguous)
    put_on_disk(temporary)
    temporary.rename(path)
