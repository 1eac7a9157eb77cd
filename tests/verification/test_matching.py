"""What was sent and what was received, what was ordered and what was answered."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fedoptima.core.effects import Effect, Halt, Run, Send
from fedoptima.core.events import (
    Connected,
    Disconnected,
    Event,
    JobDone,
    JobFailed,
    Received,
    Restarted,
)
from fedoptima.core.jobs import FullStep, Job
from fedoptima.core.messages import (
    ActivationBatch,
    GradientBatch,
    HandIn,
    Join,
    Message,
    ModelUpdate,
    Stop,
    TurnOn,
)
from fedoptima.core.types import SERVER, NodeId, Payload, PayloadId
from fedoptima.trace.record import Record
from fedoptima.verification.difference import Difference
from fedoptima.verification.matching import Incarnations, JobMatching, MailMatching

A, B = NodeId("a"), NodeId("b")


def on(node: NodeId, event: Event, *effects: Effect) -> Record:
    return Record(0.0, node, event, effects)


def checked(matching: JobMatching | MailMatching, *records: Record) -> Difference | None:
    incarnations = Incarnations()
    for number, record in enumerate(records, start=1):
        difference = matching.observe(number, record, incarnations.begun_by(record))
        if difference is not None:
            return difference
    return matching.finish() if isinstance(matching, MailMatching) else None


# ---- mail ----------------------------------------------------------------------------------------

SOMETHING = JobFailed(1, FullStep(1), "")  # any event that is not a message


def born(device: NodeId, session: int, life: int = 0) -> Record:
    return on(device, Connected(SERVER, session), Send(SERVER, session, Join(life, 8, 1.0, 1.0)))


def back(device: NodeId, session: int) -> Record:
    return born(device, session)


def joined(device: NodeId, session: int, life: int = 0) -> list[Record]:
    return [
        on(SERVER, Connected(device, session)),
        born(device, session, life),
        hears(SERVER, device, session, Join(life, 8, 1.0, 1.0)),
    ]


def says(device: NodeId, session: int, *messages: Message) -> Record:
    return on(device, SOMETHING, *(Send(SERVER, session, message) for message in messages))


def server_says(device: NodeId, session: int, *messages: Message) -> Record:
    return on(SERVER, SOMETHING, *(Send(device, session, message) for message in messages))


def hears(node: NodeId, sender: NodeId, session: int, message: Message) -> Record:
    return on(node, Received(sender, session, message))


def payload(name: str) -> Payload:
    return Payload(PayloadId(name), 4)


def batch(seq: int) -> ActivationBatch:
    return ActivationBatch(seq, payload(f"a/0/{seq}"))


UPDATE = ModelUpdate(0, 8, payload("a/0/9"))
END = on(SERVER, SOMETHING, Halt("over"))


def mail(*records: Record) -> Difference | None:
    return checked(MailMatching(), *records)


def test_what_is_sent_may_be_lost_from_some_point_on() -> None:
    story = [*joined(A, 1), says(A, 1, batch(1), batch(2), batch(3))]
    assert mail(*story, END) is None
    assert mail(*story, hears(SERVER, A, 1, batch(1)), END) is None


def test_what_is_lost_in_between_is_missed() -> None:
    difference = mail(*joined(A, 1), says(A, 1, batch(1), batch(2)), hears(SERVER, A, 1, batch(2)))
    assert difference is not None
    assert (difference.number, difference.what) == (5, "received.seq")
    assert (difference.expected, difference.got) == ("1", "2")


def test_control_and_models_overtake_activations_but_nothing_else_does() -> None:
    sent = [*joined(A, 1), says(A, 1, batch(1), batch(2), UPDATE)]
    assert mail(*sent, *(hears(SERVER, A, 1, m) for m in (UPDATE, batch(1), batch(2)))) is None
    assert mail(*sent, *(hears(SERVER, A, 1, m) for m in (batch(2), batch(1)))) is not None
    down = [*joined(A, 1), server_says(A, 1, GradientBatch(1, 0, payload("s")), TurnOn(), HandIn())]
    assert mail(*down, hears(A, SERVER, 1, TurnOn()), hears(A, SERVER, 1, HandIn())) is None
    assert mail(*down, hears(A, SERVER, 1, HandIn()), hears(A, SERVER, 1, TurnOn())) is not None


def test_a_message_may_be_recorded_as_received_before_it_is_recorded_as_sent() -> None:
    before = [*joined(A, 1), hears(SERVER, A, 1, batch(1)), hears(SERVER, A, 1, batch(2))]
    assert mail(*before, says(A, 1, batch(1), batch(2)), END) is None
    assert mail(*before, says(A, 1, batch(2), batch(1)), END) is not None


def test_a_message_is_received_once() -> None:
    story = [*joined(A, 1), server_says(A, 1, HandIn()), hears(A, SERVER, 1, HandIn())]
    assert mail(*story, END) is None
    difference = mail(*story, hears(A, SERVER, 1, HandIn()), END)
    assert difference is not None
    assert (difference.number, difference.expected, difference.got) == (6, "nothing", "HandIn()")


def test_the_first_of_several_messages_that_nobody_sent_is_shown() -> None:
    first, second = hears(B, SERVER, 1, HandIn()), hears(A, SERVER, 1, HandIn())
    difference = mail(*joined(A, 1), *joined(B, 1), first, second, END)
    assert difference is not None
    assert (difference.number, difference.record) == (7, first)
    difference = mail(*joined(A, 1), *joined(B, 1), second, first, END)
    assert difference is not None
    assert (difference.number, difference.record) == (7, second)


def test_a_message_is_received_by_the_one_it_was_sent_to() -> None:
    both = [*joined(A, 1), *joined(B, 1), server_says(A, 1, HandIn())]
    assert mail(*both, hears(B, SERVER, 1, HandIn()), END) is not None


def test_a_message_is_received_in_its_own_session() -> None:
    gone = on(SERVER, Disconnected(A, 1)), on(A, Disconnected(SERVER, 1))
    story = [*joined(A, 1), says(A, 1, UPDATE), *gone, on(SERVER, Connected(A, 2)), back(A, 2)]
    late = hears(SERVER, A, 2, UPDATE)
    assert mail(*story, late, on(A, Disconnected(SERVER, 2)), END) is not None


@pytest.mark.parametrize(
    ("end", "caught"),
    [
        ([], False),  # killed: what it sent last is not in its records
        ([born(A, 2, life=1)], False),
        ([on(A, Disconnected(SERVER, 1))], True),
        ([back(A, 2)], True),
        ([on(A, Received(SERVER, 1, Stop("")), Halt(""))], True),
    ],
    ids=["ends", "next life", "disconnected", "next session", "halted"],
)
def test_only_the_last_records_of_a_life_can_be_lost(end: list[Record], caught: bool) -> None:
    story = [*joined(A, 1), server_says(A, 1, Stop("")), hears(SERVER, A, 1, UPDATE), *end, END]
    assert (mail(*story) is not None) == caught


@pytest.mark.parametrize(
    ("next_life", "caught"), [(None, False), (1, False), (0, True)], ids=["none", "new", "same"]
)
def test_a_session_without_records_is_lost_only_with_the_end_of_a_life(
    next_life: int | None, caught: bool
) -> None:
    story = [*joined(A, 1), on(SERVER, Connected(A, 2))]
    story.append(hears(SERVER, A, 2, Join(0, 8, 1.0, 1.0)))
    if next_life is not None:
        story.append(born(A, 3, next_life))
    assert (mail(*story, END) is not None) == caught


# ---- a server that went on from a checkpoint -----------------------------------------------------


def result(life: int, ticket: int) -> Record:
    done = JobDone(ticket, FullStep(0), Payload(PayloadId(f"server/{life}/{ticket}"), 4))
    return on(SERVER, done)


def test_a_restarted_server_has_forgotten_what_it_sent_after_its_checkpoint() -> None:
    forgotten = hears(A, SERVER, 1, HandIn())
    story = [*joined(A, 1), result(0, 1), forgotten, on(SERVER, Disconnected(A, 1))]
    assert mail(*story, result(1, 2), END) is None
    assert mail(*story, result(0, 2), END) is not None, "it was never restarted"
    ended_before = [*joined(A, 1), forgotten, on(SERVER, Disconnected(A, 1)), result(0, 1)]
    assert mail(*ended_before, result(1, 2), END) is not None, "the session ended before"


def test_a_restarted_server_may_be_stopped_before_its_next_result() -> None:
    told_to_go = hears(A, SERVER, 1, Stop("the server was stopped by its operator"))
    story = [*joined(A, 1), result(0, 1), told_to_go]
    gone = on(SERVER, Disconnected(A, 1))
    assert mail(*story, on(SERVER, Restarted()), gone, END) is None
    assert mail(*story, gone, END) is not None, "it was never restarted"
    assert mail(*story, gone, on(SERVER, Restarted()), END) is not None, "the session ended before"


def test_what_a_restarted_server_orders_for_sessions_that_are_gone_was_never_sent() -> None:
    """When it takes leave of one device, it may turn to the next."""
    forgotten = [hears(A, SERVER, 1, HandIn())]
    next_turn = on(SERVER, Disconnected(B, 1), Send(A, 1, TurnOn()))
    gone = on(SERVER, Disconnected(A, 1))
    story = [*joined(A, 1), *joined(B, 1), result(0, 1), *forgotten]
    assert mail(*story, on(SERVER, Restarted()), next_turn, gone, END) is None
    assert mail(*story, next_turn, gone, END) is not None, "it was never restarted"
    again = [on(SERVER, Restarted()), next_turn, gone, *joined(A, 2), server_says(A, 2, TurnOn())]
    assert mail(*story, *again, hears(A, SERVER, 2, TurnOn()), END) is None
    assert mail(*story, *again, hears(A, SERVER, 2, HandIn()), END) is not None, "a new session"


def test_a_restarted_server_has_forgotten_whole_sessions() -> None:
    heard = [*joined(A, 1), result(0, 1), back(A, 2), hears(A, SERVER, 2, HandIn())]
    assert mail(*heard, on(SERVER, Disconnected(A, 1)), result(1, 2), END) is None
    assert mail(*heard, on(SERVER, Disconnected(A, 1)), result(0, 2), END) is not None


def test_a_server_that_was_killed_for_good_has_lost_its_last_records() -> None:
    story = [*joined(A, 1), result(0, 1), hears(A, SERVER, 1, HandIn())]
    assert mail(*story) is None
    assert mail(*story, END) is not None


# ---- jobs ----------------------------------------------------------------------------------------


def order(node: NodeId, ticket: int, job: Job = FullStep(0)) -> Record:  # noqa: B008
    return on(node, Connected(SERVER, 1), Run(ticket, job))


def answer(node: NodeId, ticket: int, life: int = 0, job: Job = FullStep(0)) -> Record:  # noqa: B008
    return on(node, JobDone(ticket, job, payload(f"{node}/{life}/{ticket}")))


def jobs(*records: Record) -> Difference | None:
    return checked(JobMatching(), *records)


def test_a_job_is_answered_before_the_next_is_ordered() -> None:
    assert jobs(order(SERVER, 1), answer(SERVER, 1), order(SERVER, 2)) is None
    assert jobs(order(SERVER, 1), order(A, 1), answer(A, 1), answer(SERVER, 1)) is None
    difference = jobs(order(SERVER, 1), order(SERVER, 2))
    assert difference is not None
    assert difference.what == "the job running"


def test_an_answer_may_order_the_next_job() -> None:
    done = JobDone(1, FullStep(0), payload("server/0/1"))
    assert jobs(order(SERVER, 1), on(SERVER, done, Run(2, FullStep(1)))) is None


@pytest.mark.parametrize(
    "records",
    [
        [answer(A, 1)],
        [order(A, 1), answer(A, 2)],
        [order(A, 1), answer(A, 1, job=FullStep(7))],
        [order(A, 1), answer(A, 1), answer(A, 1)],
        [order(A, 1), answer(B, 1)],
        [order(A, 1), on(A, JobFailed(2, FullStep(0), ""))],
        [order(A, 1), answer(A, 1, life=1)],
    ],
    ids=["unasked", "ticket", "job", "twice", "other node", "failed", "other life"],
)
def test_an_answer_is_to_the_job_that_was_ordered(records: list[Record]) -> None:
    difference = jobs(*records)
    assert difference is not None
    assert difference.number == len(records)


def test_a_new_life_leaves_the_old_ones_job_unanswered() -> None:
    born_again = born(A, 2, life=1)
    story = [born(A, 1), on(A, Disconnected(SERVER, 1), Run(3, FullStep(0)))]
    next_job = on(A, Disconnected(SERVER, 2), Run(1, FullStep(0)))
    assert jobs(*story, born_again, next_job, answer(A, 1, life=1)) is None
    assert jobs(*story, next_job) is not None
    assert jobs(*story, born_again, answer(A, 3)) is not None


def test_only_a_servers_life_may_go_on_in_the_middle_and_never_back() -> None:
    def incarnations(node: NodeId) -> Callable[..., list[Record]]:
        def of(*numbers: int) -> list[Record]:
            return [
                record
                for ticket, life in enumerate(numbers, start=1)
                for record in (order(node, ticket), answer(node, ticket, life))
            ]

        return of

    assert jobs(*incarnations(SERVER)(0, 0, 2, 2)) is None
    assert jobs(*incarnations(SERVER)(0, 1, 0)) is not None
    assert jobs(*incarnations(A)(0, 1)) is not None
