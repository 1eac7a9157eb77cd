"""FedOptima's merges in a real run: x <- (1 - w) x + w x_k with w = 1 / (staleness + 1)."""

from __future__ import annotations

import torch

from fedoptima.core.effects import Note, Run, Send
from fedoptima.core.events import JobDone, Received
from fedoptima.core.jobs import Merge, PlanRun
from fedoptima.core.messages import GlobalModel, ModelUpdate
from fedoptima.core.types import SERVER
from fedoptima.engine.payloads import Tensors, unpack
from fedoptima.trace.record import Record
from tests.experiments.runs import set_up


def test_every_merge_is_the_formula_at_the_staleness_it_came_with() -> None:
    records: list[Record] = []
    set_up(records, stop={"epochs": 6.0}).simulation.run()
    begun_with = {}  # device -> the version its pending update began with
    version = 0
    current: Tensors = {}
    staleness = []
    for record in records:
        if record.node != SERVER:
            continue
        match record.event:
            case Received(sender, _, ModelUpdate(began)):
                begun_with[sender] = began
            case JobDone(job=PlanRun(), result=model):
                current = unpack(model)
            case JobDone(job=Merge(keep, parts) as merge, result=model):
                (part,) = parts
                behind = version - begun_with[part.device]
                staleness.append(behind)
                assert part.weight == 1 / (behind + 1)
                assert keep == 1 - part.weight
                update = unpack(part.data)
                merged = {
                    name: _mixed(current[name], update[name], part.weight) for name in current
                }
                assert unpack(model).keys() == merged.keys()
                for name, tensor in unpack(model).items():
                    assert torch.equal(tensor, merged[name]), (name, behind, merge)
                current = merged
                version += 1
        assert all(
            effect.message.version == version
            for effect in record.effects
            if isinstance(effect, Send) and isinstance(effect.message, GlobalModel)
        )
    assert len(set(staleness)) >= 4, "the fleet is too even to show anything"
    assert 0 in staleness


def _mixed(base: torch.Tensor, update: torch.Tensor, weight: float) -> torch.Tensor:
    if not base.is_floating_point():
        return torch.maximum(base, update)
    return update * weight if weight == 1 else base * (1 - weight) + update * weight


def test_an_update_beyond_the_delay_is_not_merged_but_answered() -> None:
    records: list[Record] = []
    method = {"name": "fedoptima", "max_delay": 1}
    set_up(records, method=method, stop={"epochs": 6.0}).simulation.run()
    refused = 0
    for record in records:
        for effect in record.effects:
            if isinstance(effect, Note) and effect.kind == "update refused":
                refused += 1
                answers = [e for e in record.effects if isinstance(e, Send)]
                assert any(
                    e.to == effect.about and isinstance(e.message, GlobalModel) for e in answers
                )
                assert not any(
                    isinstance(e, Run)
                    and isinstance(e.job, Merge)
                    and e.job.parts[0].device == effect.about
                    for e in record.effects
                )
    assert refused > 0
