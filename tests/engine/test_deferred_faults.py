"""What is noted while batches train, and read later."""

from __future__ import annotations

import torch

from fedoptima.core.types import NodeId
from fedoptima.engine.deferred_faults import DeferredFaults
from fedoptima.engine.value_ranges import Range

A, B = NodeId("a"), NodeId("b")


def faults() -> DeferredFaults:
    return DeferredFaults({"x": Range(-1.0, 2.0), "labels": Range(0, 9)}, torch.device("cpu"))


def batch(value: float, label: int = 3) -> dict[str, torch.Tensor]:
    return {"x": torch.tensor([0.5, value]), "labels": torch.tensor([label])}


def test_a_batch_out_of_range_is_not_used_and_its_device_named() -> None:
    deferred = faults()
    assert not deferred.saw(deferred.notes(A), batch(2.0))
    for bad in (batch(2.5), batch(-1.5), batch(float("nan")), batch(0.0, label=10)):
        deferred.forget(B)
        assert deferred.saw(deferred.notes(B), bad)
        assert list(deferred.faults()) == [B]


def test_notes_of_a_recorded_step_are_added_to_those_of_its_device() -> None:
    deferred = faults()
    for device, value in ((A, 1.0), (B, 5.0), (A, 0.0)):
        recorded = deferred.new_notes()
        deferred.saw(recorded, batch(value))
        deferred.notes(device).add(recorded)
    assert list(deferred.read()) == [B]
    assert deferred.read() == {}  # each is named once


def test_notes_of_one_device_have_memory_of_their_own() -> None:
    """Steps of several devices run side by side on a GPU: none may write what another has read."""
    deferred = faults()
    one, other = deferred.notes(A).values, deferred.notes(B).values
    assert one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr()


def test_a_fault_outlives_a_checkpoint() -> None:
    deferred = faults()
    deferred.saw(deferred.notes(A), batch(1.0))
    deferred.notes(B).fault(torch.tensor(1.0))
    again = faults()
    again.restore(*deferred.save())
    assert list(again.faults()) == [B]
    assert torch.equal(again.notes(A).values[:-1], deferred.notes(A).values[:-1])
