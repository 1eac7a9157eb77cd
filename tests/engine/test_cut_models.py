"""The server's engine where devices have cuts of their own: what enters where, what is merged."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedoptima.core.errors import ProtocolViolation
from fedoptima.core.events import JobDone
from fedoptima.core.jobs import CutMerge, CutModel, CutStep, Part
from fedoptima.core.messages import ActivationBatch, ModelUpdate
from fedoptima.core.types import NodeId, Payload, PayloadId
from fedoptima.engine.payloads import pack, unpack
from fedoptima.engine.server import ServerEngine
from fedoptima.trace.record import Record
from tests.experiments.test_cuts import set_up

WIFI = NodeId("wifi")
RESULT = PayloadId("server/0/999")


@pytest.fixture(scope="module")
def planned() -> tuple[ServerEngine, dict[int, CutStep]]:
    """An engine, and a batch of each cut that it has trained on."""
    records: list[Record] = []
    assembly = set_up(records, stop={"epochs": 0.5})
    steps: dict[int, CutStep] = {}
    assembly.simulation.run(pause=lambda: _all_cuts(records, steps))
    engine = assembly.server_engine
    assert isinstance(engine, ServerEngine)
    return engine, steps


def _all_cuts(records: list[Record], steps: dict[int, CutStep]) -> bool:
    event = records[-1].event
    if isinstance(event, JobDone) and isinstance(event.job, CutStep):
        steps[event.job.cut] = event.job
    return len(steps) == 3


def blocks(engine: ServerEngine) -> dict[str, Tensor]:
    return engine.export()


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    """The blocks that differ."""
    return {n[0] for n in before if not torch.equal(before[n], after[n])}


def model_of(engine: ServerEngine, cut: int) -> dict[str, Tensor]:
    made = engine.execute(CutModel(WIFI, 1, cut), RESULT).result
    return {name: tensor.clone() for name, tensor in unpack(made).items()}


Planned = tuple[ServerEngine, dict[int, CutStep]]


def test_a_batch_trains_the_blocks_behind_its_cut_and_no_others(planned: Planned) -> None:
    engine, steps = planned
    for cut, trained in ((1, {"1", "2", "3"}), (2, {"2", "3"}), (3, {"3"})):
        before = blocks(engine)
        engine.execute(steps[cut], RESULT)
        assert changed(before, blocks(engine)) == trained


def test_each_part_of_an_update_is_merged_at_its_weight_and_the_server_keeps_the_rest(
    planned: Planned,
) -> None:
    engine, _ = planned
    base, before = model_of(engine, 2), blocks(engine)
    update = {n: t + 1 if t.is_floating_point() else t for n, t in base.items()}
    merge = CutMerge(
        *(0.5, (Part(WIFI, 0.5, pack(PayloadId("wifi/0/1"), update)),), (WIFI,)),
        bases=(None,),
        cut=2,
        weights=(0.5, 0.25, 1.0),
    )
    engine.execute(merge, RESULT)
    after = model_of(engine, 2)
    moved = {"0": 0.5, "1": 0.25, "a": 1.0}  # of blocks, and of the auxiliary network
    for name, tensor in base.items():
        if tensor.is_floating_point():
            expected = tensor + moved[name[0]]
            torch.testing.assert_close(after[name], expected, msg=name)
    assert changed(before, blocks(engine)) == {"0", "1"}  # the second block is the server's, too


def test_auxiliary_networks_of_other_cuts_are_left_as_they_are(planned: Planned) -> None:
    engine, _ = planned
    others = {cut: model_of(engine, cut) for cut in (1, 3)}
    update = {n: t * 2 for n, t in model_of(engine, 2).items()}
    part = Part(WIFI, 1.0, pack(PayloadId("wifi/0/1"), update))
    engine.execute(
        CutMerge(0.0, (part,), (WIFI,), bases=(None,), cut=2, weights=(0.5, 0.5, 1.0)), RESULT
    )
    for cut, before in others.items():
        after = model_of(engine, cut)
        assert changed(before, after) == ({"0"} if cut == 1 else {"0", "1"})


def test_an_update_that_is_not_finite_changes_nothing(planned: Planned) -> None:
    engine, _ = planned
    before = {cut: model_of(engine, cut) for cut in (1, 2, 3)}
    update = {n: t * torch.inf if t.is_floating_point() else t for n, t in before[2].items()}
    part = Part(WIFI, 1.0, pack(PayloadId("wifi/0/1"), update))
    engine.execute(
        CutMerge(0.5, (part,), (WIFI,), bases=(None,), cut=2, weights=(0.5, 0.5, 0.5)), RESULT
    )
    for cut, model in before.items():
        assert not changed(model, model_of(engine, cut))


def test_a_message_is_checked_against_the_cut_that_it_says_it_is_of(planned: Planned) -> None:
    engine, steps = planned
    batch = steps[2]
    engine.admit(ActivationBatch(0, batch.data, cut=2))
    with pytest.raises(ProtocolViolation, match=r"'activations.0' is"):
        engine.admit(ActivationBatch(0, batch.data, cut=1))
    with pytest.raises(ProtocolViolation, match="7 blocks on a device: not a cut of the plan"):
        engine.admit(ActivationBatch(0, batch.data, cut=7))
    model = Payload(PayloadId("wifi/0/1"), 0, model_of(engine, 2))
    engine.admit(ModelUpdate(0, 1, model, cut=2))
    with pytest.raises(ProtocolViolation, match="is not the plan's"):
        engine.admit(ModelUpdate(0, 1, model, cut=1))
