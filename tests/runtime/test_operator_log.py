"""What is logged of a node's records: little, and in words."""

from __future__ import annotations

import logging

import pytest

from fedoptima.core.effects import Halt, Send
from fedoptima.core.events import Disconnected, JobDone, Received, TimerFired
from fedoptima.core.jobs import DeviceProfile, FullStep, PlanRun
from fedoptima.core.messages import Join, ModelUpdate
from fedoptima.core.plan import BlockProfile, Plan
from fedoptima.core.types import SERVER, NodeId, Payload, PayloadId
from fedoptima.runtime.operator_log import DeviceLog, ServerLog
from fedoptima.trace.record import Record

A = NodeId("a")
DATA = Payload(PayloadId("x"), 10)
BLOCK = BlockProfile("conv", 10, 20, 40, 40, 1234, 4936)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> logging.Logger:
    caplog.set_level(logging.INFO)
    return logging.getLogger("fedoptima.test")


def planned(split: int, auxiliary: BlockProfile | None) -> Record:
    plan = Plan((BLOCK, BLOCK), split, "default", auxiliary, "paper", ())
    job = PlanRun((DeviceProfile(A, 8, 1.0, 1.0),))
    return Record(1.0, SERVER, JobDone(1, job, DATA, text=plan.to_json()), [])


@pytest.mark.parametrize(
    ("join", "words"),
    [
        (Join(0, 360, 6.06e9, 1e6), "a joined: 360 samples, 6.06 GFLOP/s, uplink 8.0 Mbit/s"),
        (Join(0, 8, 1e9, 1e6, 3, training=True), "a joined in the middle of a round of version 3:"),
        (Join(0, 8, 1e9, 1e6, 3, False, PayloadId("u")), "a joined with an update of version 3:"),
    ],
)
def test_who_joins_and_with_what(
    log: logging.Logger, caplog: pytest.LogCaptureFixture, join: Join, words: str
) -> None:
    ServerLog(log).observe(Record(0.0, SERVER, Received(A, 1, join), []))
    assert caplog.messages[0].startswith(words)


def test_that_no_device_is_left_is_said_once(
    log: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    server, b = ServerLog(log), NodeId("b")
    for device in (A, b):
        server.observe(Record(0.0, SERVER, Received(device, 1, Join(0, 8, 1e9, 1e6)), []))
    caplog.clear()
    server.observe(Record(1.0, SERVER, Disconnected(A, 1), []))
    assert not caplog.messages
    server.observe(Record(2.0, SERVER, Disconnected(b, 1), []))
    server.observe(Record(3.0, SERVER, Disconnected(b, 1), []))
    assert [message.split(":")[0] for message in caplog.messages] == ["no device is left"]


def test_devices_that_leave_a_run_that_is_over_are_not_missed(
    log: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    server = ServerLog(log)
    server.observe(Record(0.0, SERVER, Received(A, 1, Join(0, 8, 1e9, 1e6)), []))
    caplog.clear()
    server.observe(Record(1.0, SERVER, TimerFired("x"), [Halt("done")]))
    server.observe(Record(2.0, SERVER, Disconnected(A, 1), []))
    assert not caplog.messages


def test_how_the_model_is_divided(log: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    server = ServerLog(log)
    server.observe(planned(1, BLOCK))
    server.observe(planned(1, None))
    server.observe(planned(2, None))
    split = "planned for 1 device: 1 of 2 blocks are on the devices, up to conv"
    assert caplog.messages == [
        f"{split}, with an auxiliary network of 1,234 parameters",
        split,
        "planned for 1 device: every device trains the whole model",
    ]


def test_rounds_are_told_of_once_in_a_while(
    log: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    device = DeviceLog(log)
    handed_in = [Send(SERVER, 1, ModelUpdate(4, 64, DATA))]
    for _ in range(100):
        device.observe(Record(0.0, A, JobDone(1, FullStep(0), DATA), handed_in))
        device.observe(Record(0.0, A, JobDone(1, FullStep(0), DATA), []))
    assert caplog.messages == ["round 1 is handed in: version 4 trained on 64 samples"]
