"""What a server's run is counted to, over interruptions and gaps in its trace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from fedoptima.core.effects import Evaluate
from fedoptima.core.errors import ConfigError
from fedoptima.core.events import Evaluated, Gap, JobDone
from fedoptima.core.jobs import AuxiliaryStep, ServerStep
from fedoptima.core.types import SERVER
from fedoptima.experiments.server_accounts import ServerAccounts
from fedoptima.trace.record import Record
from fedoptima.trace.run_folder import RunFiles, device_trace
from fedoptima.trace.writer import TraceWriter
from tests.analysis.stories import DATA, A, planned, told


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return RunFiles(tmp_path).trace


def write(path: Path, records: Sequence[Record]) -> None:
    path.parent.mkdir(exist_ok=True)
    writer = TraceWriter(path, {})
    for record in records:
        writer.write(record)
    writer.close()


# ---- onlookers -----------------------------------------------------------------------------------


def test_who_watches_a_resumed_run_that_nobody_watched_sees_it_from_its_trace(trace: Path) -> None:
    write(trace, [planned(1.0)])
    accounts, again = ServerAccounts(trace), ServerAccounts(trace)
    accounts.watch(ServerAccounts(trace).save()())
    assert accounts.live.fleet.began == 1.0
    again.watch(accounts.save()())
    assert again.live.accounts.course.began == 1.0


def test_live_accounts_that_could_not_be_made_are_in_no_checkpoint(trace: Path) -> None:
    accounts = ServerAccounts(trace)
    with pytest.raises(ConfigError):  # there is no trace
        accounts.watch({"live": {}})
    assert accounts.save()()["live"] == {}


# ---- the result ----------------------------------------------------------------------------------


def evaluation(at: float, index: int) -> list[Record]:
    """After a step of the server."""
    step = JobDone(index, ServerStep(A, 1, 0, DATA, 0.0), DATA, samples=5)
    return [
        told(at - 0.5, SERVER, step, Evaluate(index, float(index), index)),
        told(at, SERVER, Evaluated(index, (("accuracy", index / 10),))),
    ]


FIRST, LOST, LAST = evaluation(3.0, 1), evaluation(5.0, 2), evaluation(7.0, 3)


@pytest.mark.parametrize("missing", [0, 2])  # of an earlier process, or of this one
@pytest.mark.parametrize("with_plan", [False, True])
def test_evaluations_in_a_gap_of_the_trace_are_in_the_result(
    trace: Path, missing: int, with_plan: bool
) -> None:
    begin = [planned(1.0)]
    gap = Record(5.5, SERVER, Gap(2, 4.5, ()), [])
    write(trace, [*begin, *FIRST, gap, *LAST] if not with_plan else [gap, *LAST])
    steps = [told(at, A, JobDone(1, AuxiliaryStep(0), DATA, samples=8)) for at in (2.0, 4.0, 6.0)]
    write(device_trace(RunFiles(trace.parent).devices, A), steps)
    accounts = ServerAccounts(trace)
    for record in [*begin, *FIRST, *LOST, *LAST]:
        accounts.course.observe(record)
    found = accounts.summary(missing=missing)
    assert [
        (p.seconds, p.version, p.device_samples, p.server_samples, p.accuracy) for p in found.curve
    ] == [(2.0, 1, 8, 5, 0.1), (4.0, 2, 16, 10, 0.2), (6.0, 3, 24, 15, 0.3)]
    assert found.seconds == 6.0


def test_without_a_gap_the_curve_is_the_traces(trace: Path) -> None:
    records = [planned(1.0), *FIRST, *LAST]
    write(trace, records)
    late = told(9.0, A, JobDone(1, AuxiliaryStep(0), DATA, samples=8))
    write(device_trace(RunFiles(trace.parent).devices, A), [late])
    accounts = ServerAccounts(trace)
    for record in records:
        accounts.course.observe(record)
    found = accounts.summary()
    assert [point.device_samples for point in found.curve] == [0, 0]
    assert found.seconds == 8.0, "devices' records count, too"
