"""The files of a run's folder: their names, and nothing about what is in them.

config.json           the description of the run: see `trace.description`
trace.jsonl.gz        everything that happened
metrics.csv           one line for each evaluation so far
summary.json          the result, without weights
model.safetensors     the trained model, both sides joined
checkpoints/          to resume from after a kill; removed when the run is over
last_state/           of a run that is over: where it goes on if it is extended
failure.txt           why the run failed
disk_failing          there, and touched, while the server cannot write: readers see no more
stopped.txt           when the run was stopped by its user; it can be resumed
starts                over the network: how many processes have served the run
control               what the operator wants of the run, from another terminal
devices/              over the network: what each device recorded
logs/                 over the network: the logs of server and devices
states/               devices that run on this machine: what they keep across processes
"""

from __future__ import annotations

import os
from pathlib import Path

from fedoptima.trace.plain_files import open_plain, read_plain, refuse_link

_TRACE = ".jsonl.gz"


class RunFiles:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.trace = path / f"trace{_TRACE}"
        self.metrics = path / "metrics.csv"
        self.summary = path / "summary.json"
        self.model = path / "model.safetensors"
        self.checkpoints = path / "checkpoints"
        self.last_state = path / "last_state"
        self.failure = path / "failure.txt"
        self.disk_failing = path / "disk_failing"
        self.stopped = path / "stopped.txt"
        self.starts = path / "starts"
        self.control = path / "control"
        self.devices = path / "devices"
        self.logs = path / "logs"
        self.server_log = self.logs / "server.log"
        self.states = path / "states"

    @property
    def begun(self) -> bool:
        return self.config.is_file() or self.checkpoints.is_dir()

    @property
    def measured(self) -> bool:
        """Its model was evaluated or saved: there is something to lose."""
        saved = self.checkpoints.is_dir() and any(self.checkpoints.iterdir())
        return saved or (self.metrics.is_file() and len(read_plain(self.metrics).splitlines()) > 1)

    def kept_configs(self) -> list[Path]:
        """The copies that its checkpoints have, the newest first."""
        kept = (folder.glob("[0-9]*/config.json") for folder in (self.checkpoints, self.last_state))
        return [path for found in kept for path in sorted(found, reverse=True)]

    @property
    def over(self) -> bool:
        return self.summary.is_file()

    def device_traces(self) -> list[Path]:
        """Of all devices that have recorded something; a simulation has none."""
        refuse_link(self.devices)
        return sorted(self.devices.glob(f"*{_TRACE}"))

    def traces(self) -> list[Path]:
        """A simulation's trace holds all nodes' records; over the network each has its own."""
        return [self.trace, *self.device_traces()]


def device_trace(folder: Path, device: str) -> Path:
    """In the folder of the devices' traces."""
    return folder / f"{device}{_TRACE}"


def device_of(trace: Path) -> str:
    """Whose trace in that folder it is."""
    return trace.name.removesuffix(_TRACE)


def write_whole(path: Path, text: str, *, sync: bool = False) -> None:
    """Written atomically: after a kill the file is whole or not there.

    ``sync``: it is on the disk when this returns, also if the power fails then.
    """
    temporary = path.with_suffix(".tmp")
    with open_plain(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    temporary.rename(path)
    if sync:
        put_on_disk(path.parent)


def put_on_disk(path: Path) -> None:
    """What a file holds, or the names in a folder, also if the power fails then."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
