"""One run with faults: it is played, has to recover from each of them, and ends when told to."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fedoptima.core.types import PayloadId
from tests.support.processes import Command, Fleet
from tests.support.proxy import Proxy
from tests.support.small_disk import SmallDisk
from tools.chaos.damage import damage
from tools.chaos.disk import disk
from tools.chaos.script import DEVICES, Fault, Kind, Script
from tools.chaos.watch import Update, Watch

RECIPE = """
name = "chaos"
seed = {seed}
threads = 1
split.at = 1
model = {{ name = "tests.e2e.tiny:model", width = 4 }}
method.name = "{method}"
fleet.server.gflops = 1.0
fleet.devices = [{{ name = "pi", count = {devices}, gflops = 0.1 }}]
deploy = {{ checkpoint_seconds = 1.0, patience = 30 }}

[data]
name = "tests.e2e.tiny:data"
samples = 480
tests = 2000
noise = 1.4
partition.kind = "iid"

[training]
batch_size = 16
evaluate_every = 4.0
device.learning_rate = 0.05
server.learning_rate = 0.05
"""

# A round takes half a second, so that faults fall into its middle.
_GFLOPS = {"splitfed": 0.0008, "pipar": 0.0008, "oafl": 0.0008}
_USUAL = 0.004
_PATIENCE = 300.0  # seconds, for what takes a few on a machine with nothing else to do
_LEAST_MERGES = {"fl": 6, "fedbuff": 6, "splitfed": 6, "pipar": 6}
_OTHERS = 18


def recipe_of(script: Script) -> str:
    return RECIPE.format(method=script.method, seed=script.seed, devices=len(DEVICES))


class NotSurvived(Exception):
    """A run that did not go on, or ended wrongly."""


@dataclass
class Played:
    """A fault, how long it took until every device that noticed it had trained and handed in."""

    fault: Fault
    seconds: float
    merges_undone: int = 0
    # Of each device: the update with which it was back.
    back: dict[str, PayloadId] = field(default_factory=dict)


class Stage(Fleet):
    """A server and devices, each behind a relay of its own, on disks of their own."""

    def __init__(self, folder: Path, script: Script, disks: tuple[SmallDisk, SmallDisk]) -> None:
        super().__init__(folder, script.method, patience=_PATIENCE)
        self.script = script
        self.servers_disk, self.devices_disk = disks
        self.run, self.states = disks[0].path / "run", disks[1].path
        self.recipe.write_text(recipe_of(script))
        self.relays: dict[str, Proxy] = {}
        self.devices: dict[str, Command] = {}
        self.server: Command
        self.watch = Watch(self.run / "trace.jsonl.gz")

    def begin(self) -> None:
        self.server = self.start_server("--set", "stop.hours=1")
        for name in DEVICES:
            self.start(name)

    def start(self, name: str) -> None:
        pace = str(_GFLOPS.get(self.script.method, _USUAL))
        through = self.relays[name].address
        self.devices[name] = self.start_device(name, "--gflops", pace, through=through)

    def resume(self) -> None:
        self.server = self.start_server(resume=True)

    # ---- waiting ---------------------------------------------------------------------------------

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Until the condition holds, while every process lives."""
        end = time.monotonic() + _PATIENCE
        while True:
            self.watch.look()
            if condition():
                return
            ended = [c for c in (self.server, *self.devices.values()) if not c.alive]
            if ended:
                raise NotSurvived(f"{ended[0].log.name} has ended:\n{ended[0].said[-2000:]}")
            if time.monotonic() > end:
                raise NotSurvived(f"not within {_PATIENCE:.0f} s: {what}\n{self._last_words()}")
            time.sleep(0.1)

    def _last_words(self) -> str:
        commands = (self.server, *self.devices.values())
        return "\n".join(f"{c.log.name}: {c.said[-600:]}" for c in commands)

    def handed_in(self, names: tuple[str, ...], known: set[Update]) -> dict[str, PayloadId]:
        found = {name: self.watch.news(name, known) for name in names}
        return {name: update for name, update in found.items() if update is not None}


@contextmanager
def stage(folder: Path, script: Script, *, disks: bool) -> Iterator[Stage]:
    with ExitStack() as stack:
        servers = stack.enter_context(disk(folder / "server", real=disks))
        devices = stack.enter_context(disk(folder / "devices", real=disks))
        made = Stage(folder, script, (servers, devices))
        stack.callback(made.clear_away)
        for name in DEVICES:
            made.relays[name] = stack.enter_context(Proxy(made.address))
        yield made


def play(stage: Stage, tell: Callable[[str], None]) -> list[Played]:
    """All faults of the script, step by step; then the run is ended as an operator would."""
    stage.begin()
    stage.wait(lambda: len(stage.handed_in(DEVICES, set())) == len(DEVICES), "the run begins")
    played: list[Played] = []
    for faults in stage.script.steps:
        done = _step(stage, faults)
        tell("; ".join(f"{one.fault}: back after {one.seconds:.1f} s" for one in done))
        played += done
    enough = _LEAST_MERGES.get(stage.script.method, _OTHERS)
    stage.wait(lambda: stage.watch.merges >= enough, f"{enough} merges")
    _end(stage)
    return played


def _step(stage: Stage, faults: tuple[Fault, ...]) -> list[Played]:
    stage.watch.look()
    known = set(stage.watch.updates)
    begun, played = time.monotonic(), [Played(fault, 0.0) for fault in faults]
    over = [_begin(stage, one) for one in played]
    for one, end in sorted(zip(played, over, strict=True), key=lambda pair: pair[0].fault.seconds):
        time.sleep(max(0.0, begun + one.fault.seconds - time.monotonic()))
        end()
    stage.watch.look()
    known |= set(stage.watch.updates)
    waiting = list(played)

    def all_back() -> bool:
        for one in list(waiting):
            one.back = stage.handed_in(one.fault.devices, known)
            if len(one.back) == len(one.fault.devices):
                one.seconds = time.monotonic() - begun
                waiting.remove(one)
        return not waiting

    stage.wait(all_back, f"every device is back after {', '.join(map(str, faults))}")
    return played


# ---- the faults ----------------------------------------------------------------------------------


def _begin(stage: Stage, one: Played) -> Callable[[], None]:
    """Begin a fault; what is returned ends it."""
    fault = one.fault
    first = fault.devices[0]
    relay, device = stage.relays[first], stage.devices[first]
    match fault.kind:
        case Kind.DEVICE_KILLED:
            device.kill()
            return lambda: stage.start(first)
        case Kind.DEVICE_STOPPED:
            device.pause()
            return device.go_on
        case Kind.SERVER_STOPPED:
            stage.server.pause()
            return stage.server.go_on
        case Kind.SERVER_KILLED | Kind.CHECKPOINT_DAMAGED:
            _two_checkpoints(stage)
            stage.server.kill()
            damaged = fault.kind is Kind.CHECKPOINT_DAMAGED
            return lambda: _resume(stage, one, damaged=damaged)
        case Kind.CONNECTION_CUT:
            relay.cut()
            return _nothing
        case Kind.CONNECTIONS_RESET:
            relay.block()
            return relay.open
        case Kind.BYTES_DELAYED:
            relay.hold()
            return relay.let_go
        case Kind.BYTES_DROPPED:
            relay.go_silent()
            return relay.cut
        case Kind.HALF_OPEN:
            relay.go_silent()
            return _nothing
        case Kind.SERVER_NOT_TOLD:
            relay.lose_devices()
            return _nothing
        case Kind.SERVER_DISK_FULL:
            stage.servers_disk.fill()
            return stage.servers_disk.clear
        case Kind.KILLED_DISK_FULL:
            _two_checkpoints(stage)
            stage.servers_disk.fill()
            return lambda: _kill_on_full_disk(stage, one)
        case Kind.DEVICE_DISK_FULL:
            stage.devices_disk.fill()
            return stage.devices_disk.clear


def _nothing() -> None:
    pass


def _checkpoints(stage: Stage) -> list[Path]:
    folder = stage.run / "checkpoints"
    return sorted(p for p in folder.glob("[0-9]*") if p.name.isdecimal())


def _two_checkpoints(stage: Stage) -> None:
    """The first of a run are there: one to damage and one to fall back on."""
    stage.wait(lambda: len(_checkpoints(stage)) >= 2, "two checkpoints are there")


def _kill_on_full_disk(stage: Stage, one: Played) -> None:
    stage.server.kill()
    stage.servers_disk.clear()
    _resume(stage, one, damaged=False)


def _resume(stage: Stage, one: Played, *, damaged: bool) -> None:
    stage.watch.look()
    before = stage.watch.merges
    newest = _checkpoints(stage)[-1]
    if damaged:
        damage(newest, one.fault.choice)
    stage.resume()
    if damaged and newest.name not in stage.server.said:
        raise NotSurvived(f"nothing was said of {newest}, damaged:\n{stage.server.said[-2000:]}")
    stage.watch.look()
    one.merges_undone = max(0, before - stage.watch.merges)


# ---- the end -------------------------------------------------------------------------------------


def _end(stage: Stage) -> None:
    stop = stage.start_command("stop", stage.run)
    codes = [(command, command.ends()) for command in (stop, stage.server, *stage.devices.values())]
    for command, code in codes:
        if code:
            raise NotSurvived(f"{command.log.name} ended with {code}:\n{command.said[-2000:]}")


def calm_accuracy(folder: Path, script: Script, epochs: float) -> float:
    """Of the same run without faults, after as many epochs."""
    folder.mkdir(parents=True)
    quiet = Fleet(folder, script.method, patience=_PATIENCE)
    quiet.recipe.write_text(recipe_of(script))
    try:
        server = quiet.start_server("--set", f"stop.epochs={epochs}")
        fast = ("--gflops", "0.1")  # than which any machine is faster: nothing is measured
        for command in [server, *(quiet.start_device(name, *fast) for name in DEVICES)]:
            if command.ends():
                raise NotSurvived(f"the calm run failed: {command.said[-2000:]}")
    finally:
        quiet.clear_away()
    return float(json.loads((quiet.run / "summary.json").read_text())["accuracy"])
