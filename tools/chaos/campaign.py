"""A seed's runs, one of each method: what they survived, and what does not agree."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from fedoptima.core.types import SERVER, PayloadId
from fedoptima.trace.reader import read_trace
from fedoptima.verification.replay import replay
from tools.chaos.ledger import Ledger, Round, add_up, lost_until, rounds
from tools.chaos.play import NotSurvived, Played, Stage, calm_accuracy, play, stage
from tools.chaos.script import DEVICES, Script

POINTS = 0.02  # of accuracy, which a run with faults may be below the calm one


@dataclass
class Outcome:
    script: Script
    played: list[Played] = field(default_factory=list)
    lost: dict[int, int] = field(default_factory=dict)  # rounds, by the number of the fault
    ledger: Ledger | None = None
    accuracy: float = 0.0
    calm: float = 0.0
    problems: list[str] = field(default_factory=list)


def campaign(
    scripts: Sequence[Script], folder: Path, *, disks: bool, jobs: int, tell: Callable[[str], None]
) -> list[Outcome]:
    """Folders of runs that went wrong are kept."""

    def one(script: Script) -> Outcome:
        name = f"seed {script.seed}, {script.method}"
        outcome = run(
            script,
            folder / f"{script.seed}-{script.method}",
            disks=disks,
            tell=lambda text: tell(f"{name}: {text}"),
        )
        tell(f"{name}: {'; '.join(outcome.problems) or 'survived, everything agrees'}")
        return outcome

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, scripts))


def run(
    script: Script,
    folder: Path,
    *,
    disks: bool,
    tell: Callable[[str], None],
    calm: Callable[[Path, Script, float], float] = calm_accuracy,
) -> Outcome:
    """``calm``: the accuracy of the same run without faults, after so many epochs."""
    outcome = Outcome(script)
    folder.mkdir(parents=True)
    try:
        with stage(folder, script, disks=disks) as played_on:
            outcome.played = play(played_on, tell)
            _judge(outcome, played_on)
        told = json.loads((played_on.run / "summary.json").read_text())
        outcome.accuracy = told["accuracy"]
        outcome.calm = calm(folder / "calm", script, told["epochs"])
        if outcome.accuracy < outcome.calm - POINTS:
            outcome.problems.append(
                f"accuracy {outcome.accuracy:.1%}, without faults {outcome.calm:.1%}"
            )
    except (NotSurvived, AssertionError) as error:
        outcome.problems.append(str(error))
    if not outcome.problems:
        shutil.rmtree(folder)
    return outcome


def _judge(outcome: Outcome, stage: Stage) -> None:
    again = replay(stage.run)
    if not again.identical:
        outcome.problems.append(f"replay: {again.difference}")
    own = {name: stage.records_of(name) for name in DEVICES}
    trace = [r for r in read_trace(stage.run / "trace.jsonl.gz", gaps=False) if r.node == SERVER]
    outcome.ledger = add_up(trace, own, stage.run / "summary.json")
    outcome.problems += outcome.ledger.problems
    for name, records in own.items():
        _count_lost(outcome, name, rounds(records), outcome.ledger.merged)


def _count_lost(outcome: Outcome, device: str, done: list[Round], merged: set[PayloadId]) -> None:
    """Each round in vain belongs to the fault that its device came back from next."""
    at = 0
    for number, one in enumerate(outcome.played):
        if (update := one.back.get(device)) is not None:
            lost, at = lost_until(done, update, merged, at)
            outcome.lost[number] = outcome.lost.get(number, 0) + lost
