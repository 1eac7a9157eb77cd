from __future__ import annotations

from fedoptima.analysis.traffic import TrafficAccount, Volume
from fedoptima.core.effects import Effect, Send
from fedoptima.core.events import JobDone, Received
from fedoptima.core.jobs import Forward
from fedoptima.core.messages import (
    ENVELOPE_BYTES,
    ActivationBatch,
    Assignment,
    GlobalModel,
    GradientBatch,
    HandIn,
    Join,
    Message,
    ModelUpdate,
    ProgramSpec,
    Stop,
    TurnOn,
)
from fedoptima.core.types import SERVER
from tests.analysis.stories import A, blob, told


def up(message: Message, *effects: Effect) -> TrafficAccount:
    account = TrafficAccount()
    account.observe(told(0.0, SERVER, Received(A, 1, message), *effects))
    return account


def down(*messages: Message) -> Volume:
    return up(TurnOn(), *(Send(A, 1, message) for message in messages)).traffic().down


def test_what_arrives_at_the_server_is_counted_by_kind() -> None:
    account = TrafficAccount()
    for message in (
        Join(0, 8, 1.0, 1.0),
        ActivationBatch(0, blob("a", 300)),
        ActivationBatch(1, blob("b", 200)),
        ModelUpdate(0, 8, blob("m", 1000)),
    ):
        account.observe(told(0.0, SERVER, Received(A, 1, message)))
    assert account.traffic().up == Volume(
        activations=500 + 2 * ENVELOPE_BYTES,
        gradients=0,
        models=1000 + ENVELOPE_BYTES,
        control=ENVELOPE_BYTES,
    )


def test_what_the_server_sends_is_counted_by_kind() -> None:
    assignment = Assignment("x" * 30, ProgramSpec("full"), 1)
    sent = down(
        assignment,
        GradientBatch(0, 0, blob("g", 40)),
        GlobalModel(0, 0.0, blob("m", 1000)),
        TurnOn(),
        HandIn(),
        Stop("over"),
    )
    assert sent == Volume(
        activations=0,
        gradients=40 + ENVELOPE_BYTES,
        models=1000 + ENVELOPE_BYTES,
        control=30 + 4 * ENVELOPE_BYTES,
    )
    assert sent.total == 1000 + 40 + 30 + 6 * ENVELOPE_BYTES


def test_nothing_is_counted_a_second_time_at_the_device() -> None:
    account = TrafficAccount()
    batch = ActivationBatch(0, blob("a", 300))
    account.observe(told(0.0, A, JobDone(1, Forward(0), blob("a", 300)), Send(SERVER, 1, batch)))
    account.observe(told(0.0, A, Received(SERVER, 1, GlobalModel(0, 0.0, blob("m", 9)))))
    assert account.traffic().up.total == account.traffic().down.total == 0
