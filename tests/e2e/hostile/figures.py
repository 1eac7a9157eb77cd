"""Figures that no device has, and values that no training gives."""

from __future__ import annotations

import torch

from fedoptima.core.messages import ActivationBatch, GlobalModel, TurnOn
from fedoptima.core.types import PayloadId
from fedoptima.engine.payloads import unpack
from tests.e2e.hostile.field import (
    BRIEF,
    EVE,
    LAST_RESORT,
    Field,
    activations,
    answered,
    before_the_plan,
    during_the_run,
    introduced,
    join,
    member,
    payload,
    refused,
    update,
)

ABSURD: tuple[dict[str, object], ...] = (
    {"samples": 10**18},
    {"samples": 10**12},
    {"samples": 2**62},
    {"samples": 0},
    {"bytes_per_second": 5e-324},
    {"bytes_per_second": 1e308},
    {"flops_per_second": 5e-324},
    {"flops_per_second": 1e308},
    {"version": 2**62},
    {"step": 2**62},
    {"pending": PayloadId("pi-1/0/1"), "version": 0},
)


@before_the_plan
def join_with_absurd_figures(field: Field) -> None:
    """And leave: a device that has left counts for nothing."""
    for figures in ABSURD:
        with field.peer(BRIEF) as peer:
            introduced(peer)
            peer.say(join(**figures))
            refused(peer)


@during_the_run
def join_with_absurd_figures_later(field: Field) -> None:
    for figures in ABSURD:
        with field.peer() as peer:
            introduced(peer)
            peer.say(join(**figures))
            answered(peer, GlobalModel)


@before_the_plan
def join_as_a_slow_device_with_much_data(field: Field) -> None:
    """Within all bounds, and a member to the end that does nothing."""
    peer = field.staying_peer(EVE)
    introduced(peer, EVE)
    peer.say(join(samples=1_000_000, flops_per_second=1e6, bytes_per_second=1e4))


@during_the_run
def hand_in_an_update_of_more_samples_than_there_are(field: Field) -> None:
    for trained in (2**62, 10**12, -5):
        with field.peer() as peer:
            peer.say(update(member(peer), trained=trained))
            answered(peer, GlobalModel)


@during_the_run
def hand_in_an_update_of_another_version(field: Field) -> None:
    for version in (2**62, -1, -(2**62)):
        with field.peer() as peer:
            peer.say(update(member(peer), version=version))
            answered(peer, GlobalModel)


@during_the_run
def hand_in_a_model_that_is_not_finite_or_huge(field: Field) -> None:
    for value in (float("nan"), float("inf"), -float("inf"), LAST_RESORT, -LAST_RESORT, 1e20, 1e6):
        with field.peer() as peer:
            peer.say(update(member(peer), value))
            answered(peer, GlobalModel)


@during_the_run
def hand_in_a_negative_variance(field: Field) -> None:
    with field.peer() as peer:
        peer.say(update(member(peer), -1.0, only="running_var"))
        answered(peer, GlobalModel)


@during_the_run
def send_activations_that_are_not_finite_or_huge(field: Field) -> None:
    for value in (float("nan"), float("inf"), LAST_RESORT, 1e20, 1e6):
        with field.peer() as peer:
            member(peer, turn_on=True)
            peer.say(activations(value))
            answered(peer, TurnOn)


@during_the_run
def send_labels_that_are_no_classes(field: Field) -> None:
    for label in (7, -1, 2**62):
        with field.peer() as peer:
            member(peer, turn_on=True)
            peer.say(activations(0.0, label))
            answered(peer, TurnOn)


@during_the_run
def send_a_share_of_another_type(field: Field) -> None:
    """What only micro-batches have, and not as an integer."""
    with field.peer() as peer:
        member(peer, turn_on=True)
        batch = activations(0.0)
        tensors = {**unpack(batch.data), "share": torch.tensor(1)}
        peer.say(ActivationBatch(0, payload(tensors), part=0, parts=2))
        answered(peer, TurnOn)
