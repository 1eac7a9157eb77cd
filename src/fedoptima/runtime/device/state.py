"""What a device keeps across its processes: its run, its incarnation, its step."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fedoptima.core.errors import ConfigError
from fedoptima.runtime.disk import Disk

WHAT = "what this device keeps"


@dataclass(frozen=True, slots=True)
class DeviceState:
    run: str
    incarnation: int
    step: int


def state_folder() -> Path:
    """Where a user's programs keep their state (XDG)."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "fedoptima"


def _far() -> int:
    return 1 + secrets.randbelow(1 << 30)


class StateFile:
    """Rewritten as a whole, so that it is never half a state."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{path.parent}: cannot be created ({error.strerror}); choose another --state"
            ) from error

    def begin_incarnation(self, run: str, *, records: int, disk: Disk) -> DeviceState:
        """The next incarnation in a run. ``records``: what the server has of earlier ones.

        Should the file be lost, their number is still above that of any earlier incarnation.
        """
        known = self._read()
        if known is None or known.run != run:
            state = DeviceState(run, records, 0)
        else:
            state = DeviceState(run, known.incarnation + 1, known.step)
        try:
            kept = disk.attempt(WHAT, lambda: self.save(state))
        except OSError as error:
            raise ConfigError(
                f"{self.path}: cannot be written ({error.strerror}); choose another --state"
            ) from error
        # The next process would take the same number again: this one's has to be another.
        return state if kept else replace(state, incarnation=state.incarnation + _far())

    def save(self, state: DeviceState) -> None:
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(state)))
        os.replace(temporary, self.path)

    def _read(self) -> DeviceState | None:
        try:
            return DeviceState(**json.loads(self.path.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError):
            return None  # as good as none: begin_incarnation does without
