"""A dry run is the same run without the maths: the same trace, but for what evaluating measures."""

from __future__ import annotations

import pytest
import torch

from fedoptima.core.events import Evaluated
from fedoptima.sim.dry import part_size
from fedoptima.trace.record import Record
from tests.experiments.runs import CHARGED, CHURN, FLEET, set_up, without_metrics

METHODS = [
    {"name": "fedoptima"},
    {"name": "fedoptima", "scheduler": "fifo"},
    {"name": "fedoptima", "auxiliary": "none"},
    {"name": "fedoptima", "auxiliary": "classifier"},
    {"name": "fedoptima", "auxiliary": "deep"},
    {"name": "fedoptima", "activation_cap": 1, "max_delay": 2},
    {"name": "fedoptima", "train_every": 3},
    {"name": "fedoptima", "overlap": True, "max_delay": 2},
    {"name": "fedoptima", "reuse": {"batches": 8, "uses": 2, "on_leave": "forget"}},
    {"name": "fl"},
]


def name_of(value: object) -> str:
    return " ".join(str(part) for part in value.values()) if isinstance(value, dict) else str(value)


@pytest.mark.parametrize("churn", [None, CHURN], ids=["stable", "churn"])
@pytest.mark.parametrize("method", METHODS, ids=name_of)
def test_a_dry_run_makes_the_trace_of_the_real_one(
    method: dict[str, object], churn: dict[str, object] | None
) -> None:
    traces: list[list[Record]] = []
    fleet = FLEET if churn is None else {**FLEET, "churn": churn}
    for dry in (False, True):
        records: list[Record] = []
        set_up(records, dry=dry, method=method, fleet=fleet).simulation.run()
        traces.append(records)
    real, dry_one = traces
    assert any(isinstance(record.event, Evaluated) for record in real)
    assert len(real) == len(dry_one)
    for left, right in zip(real, dry_one, strict=True):
        assert without_metrics(left) == right


@pytest.mark.parametrize("name", ["fedoptima", "splitfed", "pipar"])
def test_so_it_does_where_nodes_pay_for_all_they_can(name: str) -> None:
    traces: list[list[Record]] = []
    for dry in (False, True):
        records: list[Record] = []
        set_up(records, dry=dry, method={"name": name}, fleet=CHARGED).simulation.run()
        traces.append([without_metrics(record) for record in records])
    assert traces[0] == traces[1]


@pytest.mark.parametrize("whole", [1, 5, 7, 12])
@pytest.mark.parametrize("parts", [1, 2, 3, 5])
def test_parts_are_as_large_as_torch_makes_them(whole: int, parts: int) -> None:
    sizes = [len(part) for part in torch.arange(whole).tensor_split(parts)]
    assert [part_size(whole, part, parts) for part in range(parts)] == sizes
