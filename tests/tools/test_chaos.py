"""`make chaos` in short, and what its sums find."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedoptima.config.load import load_recipe
from fedoptima.core.effects import Effect, Run, Send
from fedoptima.core.events import Connected, Disconnected, Event, Gap, JobDone, Received
from fedoptima.core.jobs import ExportModel, LoadModel, Merge, Part, Rebase, ServerStep
from fedoptima.core.messages import ActivationBatch, Join, Message, ModelUpdate
from fedoptima.core.types import SERVER, NodeId, Payload, PayloadId
from fedoptima.experiments.setup import prepare
from fedoptima.experiments.simulated_run import run_experiment
from fedoptima.trace.record import Record
from tools.chaos.campaign import Outcome, run
from tools.chaos.disk import can_mount
from tools.chaos.ledger import add_up, lost_until, rounds
from tools.chaos.play import recipe_of
from tools.chaos.report import BEGIN, END, record
from tools.chaos.script import DEVICES, METHODS, ON_DISKS, Fault, Kind, Script, scripts

PI = NodeId("pi-1")


def simulated(folder: Path, script: Script, epochs: float) -> float:
    folder.mkdir(parents=True)
    file = folder / "recipe.toml"
    file.write_text(f"stop.epochs = {epochs}\n{recipe_of(script)}")
    accuracy = run_experiment(prepare(load_recipe(file))).accuracy
    assert accuracy is not None
    return accuracy


def test_a_run_with_faults_goes_on_and_everything_agrees_at_the_end(tmp_path: Path) -> None:
    disks = can_mount()
    steps = [
        [Fault(Kind.DEVICE_KILLED, DEVICES[:1], 0.2, 0)],
        [Fault(Kind.CONNECTION_CUT, DEVICES[1:2], 0.1, 0)],
        [Fault(Kind.CHECKPOINT_DAMAGED, DEVICES, 0.1, 0)],
    ]
    if disks:
        steps[1].append(Fault(Kind.SERVER_DISK_FULL, DEVICES, 0.5, 0))
    script = Script("fedoptima", 1, tuple(map(tuple, steps)))
    outcome = run(script, tmp_path / "run", disks=disks, tell=print, calm=simulated)
    assert outcome.problems == []
    assert len(outcome.played) == 3 + disks
    assert outcome.ledger is not None
    for sums in (outcome.ledger.batches, outcome.ledger.updates):
        assert sums.used > 0
        assert sums.sent + sums.unrecorded == sums.received + sums.lost
        assert sums.received == sums.used + sums.refused + sums.left + sums.in_gaps


# ---- scripts -------------------------------------------------------------------------------------


def test_a_seed_gives_the_same_scripts_again_with_every_kind_of_fault() -> None:
    for seed in range(1, 20):
        made = scripts(seed)
        assert made == scripts(seed) != scripts(seed + 100)
        assert [script.method for script in made] == list(METHODS)
        faults = [fault for script in made for step in script.steps for fault in step]
        assert {fault.kind for fault in faults} == set(Kind)


def test_without_disks_to_fill_there_are_no_faults_of_disks() -> None:
    faults = [f for script in scripts(1, disks=False) for step in script.steps for f in step]
    assert not {fault.kind for fault in faults} & set(ON_DISKS)


# ---- sums ----------------------------------------------------------------------------------------


def payload(number: int) -> Payload:
    return Payload(PayloadId(f"{PI}/0/{number}"), 100)


def by_device(event: Event, *effects: Effect) -> Record:
    return Record(0.0, PI, event, list(effects))


def by_server(event: Event, *effects: Effect) -> Record:
    return Record(0.0, SERVER, event, list(effects))


def sent(message: Message, session: int = 1) -> Send:
    return Send(SERVER, session, message)


JOIN = Join(0, 10, 1.0, 1.0)
BATCH, UPDATE = ActivationBatch(0, payload(3)), ModelUpdate(0, 10, payload(5))
STEP = ServerStep(PI, 1, 0, BATCH.data, 0.0)
MERGE = Merge(0.0, (Part(PI, 1.0, UPDATE.data),), (PI,))
MODEL = payload(9)


def told(tmp_path: Path, **figures: int) -> Path:
    file = tmp_path / "summary.json"
    file.write_text(json.dumps({"versions": 1, "server_samples": 10} | figures))
    return file


DEVICE = [
    by_device(Connected(SERVER, 1), sent(JOIN)),
    by_device(JobDone(1, LoadModel(MODEL, 0.0), MODEL)),
    by_device(JobDone(3, ExportModel(), BATCH.data), sent(BATCH)),
    by_device(JobDone(5, ExportModel(), UPDATE.data), sent(UPDATE)),
]
TRACE = [
    by_server(Connected(PI, 1)),
    by_server(Received(PI, 1, JOIN)),
    by_server(Received(PI, 1, BATCH), Run(1, STEP)),
    by_server(JobDone(1, STEP, MODEL, samples=10)),
    by_server(Received(PI, 1, UPDATE), Run(2, MERGE)),
    by_server(JobDone(2, MERGE, MODEL)),
]


def problems(
    tmp_path: Path, trace: list[Record], device: list[Record], **figures: int
) -> list[str]:
    return add_up(trace, {PI: device}, told(tmp_path, **figures)).problems


def test_sums_of_a_run_in_which_nothing_happened_agree(tmp_path: Path) -> None:
    ledger = add_up(TRACE, {PI: DEVICE}, told(tmp_path))
    assert ledger.problems == []
    assert ledger.merged == {UPDATE.data.id}
    assert str(ledger.batches) == (
        "1 sent = 1 received + 0 lost; 1 received = 1 used + 0 refused + 0 left"
    )


def test_what_was_never_sent_is_found(tmp_path: Path) -> None:
    assert problems(tmp_path, TRACE, DEVICE[:2]) == [
        "pi-1/0/3 was received in session 1, and never sent",
        "pi-1/0/5 was received in session 1, and never sent",
    ]


def test_the_last_records_of_a_killed_device_may_be_missing(tmp_path: Path) -> None:
    again = by_device(Connected(SERVER, 2), sent(replace(JOIN, incarnation=1), 2))
    ledger = add_up(TRACE, {PI: [*DEVICE[:2], again]}, told(tmp_path))
    assert ledger.problems == []
    assert (ledger.batches.unrecorded, ledger.updates.unrecorded) == (1, 1)


def test_what_is_used_twice_or_out_of_nothing_is_found(tmp_path: Path) -> None:
    assert problems(tmp_path, [*TRACE, TRACE[3]], DEVICE, server_samples=20) == [
        "pi-1/0/3 was used, and is used already"
    ]
    assert problems(tmp_path, [*TRACE[:4], TRACE[5]], DEVICE) == [
        "pi-1/0/5 was used, and never received"
    ]


def test_a_message_that_disappears_in_a_session_that_goes_on_is_found(tmp_path: Path) -> None:
    later = by_device(Connected(SERVER, 3), sent(JOIN, 3))
    end = by_device(Disconnected(SERVER, 1))
    lost = [DEVICE[0], DEVICE[2], end, later]
    assert problems(tmp_path, TRACE[:2], lost, versions=0, server_samples=0) == []
    ledger = add_up(TRACE[:2], {PI: lost}, told(tmp_path, versions=0, server_samples=0))
    assert ledger.batches.lost == 1


def test_what_is_in_a_gap_of_the_trace_is_neither_lost_nor_invented(tmp_path: Path) -> None:
    """A batch and the device's update came in records that could not be written."""
    mail = (((PI, 1, True, True), 1), ((PI, 1, True, False), 1), ((PI, 1, False, False), 3))
    trace = [*TRACE[:2], by_server(Gap(7, 0.0, mail, Run(2, MERGE))), TRACE[5]]
    ledger = add_up(trace, {PI: DEVICE}, told(tmp_path))
    assert ledger.problems == []
    assert (ledger.batches.received, ledger.batches.in_gaps) == (1, 1)
    assert (ledger.updates.received, ledger.updates.used, ledger.updates.in_gaps) == (1, 1, 0)
    assert problems(tmp_path, trace, DEVICE, versions=0) == [
        "the trace has 1 versions, the summary 0"
    ]


def test_accounts_that_differ_from_the_trace_are_found(tmp_path: Path) -> None:
    assert problems(tmp_path, TRACE, DEVICE, versions=2, server_samples=30) == [
        "the trace has 1 versions, the summary 2",
        "the trace has 10 server_samples, the summary 30",
    ]


def test_rounds_in_vain_belong_to_the_fault_before_the_next_update() -> None:
    load = by_device(JobDone(1, LoadModel(MODEL, 0.0), MODEL))
    ends = [by_device(JobDone(n, ExportModel(), payload(n))) for n in range(4)]
    done = rounds([load, ends[0], load, load, ends[1], load, ends[2]])
    merged = {payload(0).id, payload(2).id}
    assert lost_until(done, payload(0).id, merged, 0) == (0, 1)
    assert lost_until(done, payload(2).id, merged, 1) == (2, 4)
    assert lost_until(done, payload(3).id, merged, 1) == (0, 1)


def test_a_device_that_overlaps_its_rounds_begins_one_with_each_update() -> None:
    load = by_device(JobDone(1, LoadModel(MODEL, 0.0), MODEL))
    rebase = by_device(JobDone(1, Rebase(MODEL, 0.0), MODEL))
    ends = [by_device(JobDone(n, ExportModel(keep=True), payload(n))) for n in range(3)]
    done = rounds([load, ends[0], rebase, ends[1], load, ends[2], rebase])
    assert [one.update for one in done] == [payload(0).id, payload(1).id, None, payload(2).id]


# ---- the record ----------------------------------------------------------------------------------


def test_the_table_is_written_between_its_marks(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text(f"before\n{BEGIN}\nlast year\n{END}\nafter\n")
    record(file, [Outcome(scripts(1)[0])], "python -m tools.chaos --seeds 1")
    text = file.read_text()
    assert "last year" not in text
    assert text.startswith(f"before\n{BEGIN}\n`python -m tools.chaos --seeds 1`")
    assert text.endswith(f"{END}\nafter\n")
    assert "| what went wrong | tries | survived | worst case | work lost |" in text


def test_a_page_without_marks_is_not_written_to(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text("nothing\n")
    with pytest.raises(SystemExit, match="has no lines"):
        record(file, [], "")
    assert file.read_text() == "nothing\n"
