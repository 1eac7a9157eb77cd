"""Names and numbers of others."""

from __future__ import annotations

from fedoptima.core.messages import GlobalModel, TurnOn
from tests.e2e.hostile.field import (
    ESCAPES,
    MALLORY,
    Field,
    activations,
    answered,
    before_the_plan,
    during_the_run,
    member,
    refused,
    update,
)
from tests.support.raw_peer import hello


@before_the_plan
def claim_a_session_of_the_future(field: Field) -> None:
    for session in (2**48, 2**64 - 1):
        with field.peer() as peer:
            peer.send(hello(MALLORY, last_session=session))
            peer.hear("ping")


@during_the_run
def claim_a_session_of_the_future_later(field: Field) -> None:
    claim_a_session_of_the_future(field)


@before_the_plan
def claim_another_name(field: Field) -> None:
    for name in ("pi-1", "server", "", "../../etc/passwd", "a" * 100_000, ESCAPES):
        with field.peer() as peer:
            peer.send(hello(name))
            refused(peer)


NAMES = ("evil|x", "", "server/0/1", "pi-1/0/1", "x" * 100_000, "../x", ESCAPES)


@during_the_run
def choose_the_ids_of_payloads(field: Field) -> None:
    with field.peer() as peer:
        model = member(peer)
        peer.say(update(model, name=model.data.id))
        answered(peer, GlobalModel)
    for name in NAMES:
        with field.peer() as peer:
            peer.say(update(member(peer), name=name))
            answered(peer, GlobalModel)
        with field.peer() as peer:
            member(peer, turn_on=True)
            peer.say(activations(0.0, name=name))
            answered(peer, TurnOn)


@during_the_run
def say_what_only_a_server_says(field: Field) -> None:
    with field.peer() as peer:
        member(peer)
        peer.say(TurnOn())
        refused(peer)
