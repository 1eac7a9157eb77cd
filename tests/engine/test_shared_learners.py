"""Devices that use learners in turn train as with learners of their own."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

from fedoptima.config.training import OptimizerConfig
from fedoptima.core.jobs import ExportModel, FullStep, LoadModel
from fedoptima.core.method import ServerTraining
from fedoptima.core.types import PayloadId
from fedoptima.engine.device import DeviceEngine
from fedoptima.engine.flat import FlatTensors, Layout, in_one_piece
from fedoptima.engine.optimizer import OURS, LearnerCode
from fedoptima.engine.payloads import Tensors, copy_of, pack, unpack
from fedoptima.engine.shared_learners import SharedLearners
from tests.engine.bench import RATE, Bench, dense_model, same, samples

DEVICES = ("a", "b", "c")
ROUND = PayloadId("round")


class CountingSgd(torch.optim.SGD):
    """A rate that falls with a count which it keeps in its group of parameters."""

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        super().__init__(parameters, lr)
        self.param_groups[0]["steps"] = 0

    def step(self, closure: object = None) -> None:
        group = self.param_groups[0]
        group["steps"] += 1
        for parameter in group["params"]:
            parameter.data -= group["lr"] / group["steps"] * parameter.grad


def bench(code: LearnerCode = OURS) -> Bench:
    return Bench(
        dense_model(),
        samples(),
        training=ServerTraining.NONE,
        auxiliary="none",
        optimizer=OptimizerConfig(learning_rate=RATE, momentum=0.9),
        device_code=code,
        devices=DEVICES,
    )


def one_round(device: DeviceEngine, model: Tensors, first: int) -> Tensors:
    device.execute(LoadModel(pack(ROUND, model), 0.0), ROUND)
    for step in range(first, first + 2):
        device.execute(FullStep(step), ROUND)
    return copy_of(unpack(device.execute(ExportModel(), ROUND).result))


@pytest.mark.parametrize("code", [OURS, LearnerCode(CountingSgd)], ids=["ours", "a user's"])
def test_devices_in_turn_keep_their_momentum_and_get_nothing_of_the_others(
    code: LearnerCode,
) -> None:
    model = bench(code).workload.model.state_dict()
    own = [
        [one_round(device, model, number * 2) for number in range(3)]
        for device in bench(code).devices.values()
    ]
    workplace, learners = bench(code), SharedLearners()
    shared: list[list[Tensors]] = [[] for _ in DEVICES]
    aside = [device.save() for device in workplace.devices.values()]
    for device in workplace.devices.values():
        device.share(learners)
    for number in range(3):
        for place, device in enumerate(workplace.devices.values()):
            device.take_up(*aside[place])
            shared[place].append(one_round(device, model, number * 2))
            book, tensors = device.set_aside()
            aside[place] = book, copy_of(tensors)
            assert device.losses is None
    for ours, theirs in zip(shared, own, strict=True):
        assert all(same(one, other) for one, other in zip(ours, theirs, strict=True))
    assert not same(own[0][0], own[0][1])  # what the optimiser remembers counts


def test_an_update_that_was_lent_is_overwritten_by_the_next_round() -> None:
    workplace, learners = bench(), SharedLearners()
    device = next(iter(workplace.devices.values()))
    device.share(learners)
    model = workplace.workload.model.state_dict()
    device.execute(LoadModel(pack(ROUND, model), 0.0), ROUND)
    device.execute(FullStep(0), ROUND)
    lent = unpack(device.execute(ExportModel(), ROUND).result)
    assert not same(lent, model)
    device.execute(LoadModel(pack(ROUND, model), 0.0), ROUND)
    assert same(lent, model)


def test_an_update_is_where_the_weights_were_and_stays_there_without_a_copy() -> None:
    workplace, learners = bench(), SharedLearners()
    device = next(iter(workplace.devices.values()))
    given: list[FlatTensors] = []

    def memory(layout: Layout) -> FlatTensors:
        given.append(FlatTensors(layout, torch.zeros(layout.nbytes, dtype=torch.uint8)))
        return given[-1]

    device.share(learners, memory)
    model = workplace.workload.model.state_dict()
    own = next(iter(bench().devices.values()))
    aside = device.save()
    for number in range(2):
        device.take_up(*aside)
        device.execute(LoadModel(pack(ROUND, model), 0.0), ROUND)
        device.execute(FullStep(2 * number), ROUND)
        device.execute(FullStep(2 * number + 1), ROUND)
        update = unpack(device.execute(ExportModel(), ROUND).result)
        assert update is given[number]
        assert same(update, one_round(own, model, 2 * number))
        aside = device.set_aside()
    assert not same(given[0], given[1])


def test_another_engine_goes_on_with_a_device_in_the_middle_of_its_round() -> None:
    model = bench().workload.model.state_dict()
    own = next(iter(bench().devices.values()))
    expected = [one_round(own, model, first) for first in (0, 2)]
    first, second = (next(iter(bench().devices.values())) for _ in range(2))
    for device in (first, second):
        device.share(SharedLearners(), lambda layout: in_one_piece(_zeros(layout)))
    aside = first.save()
    for number in range(2):
        first.take_up(*aside)
        first.execute(LoadModel(pack(ROUND, model), 0.0), ROUND)
        first.execute(FullStep(2 * number), ROUND)
        second.take_up(*first.save())
        first.reset()
        second.execute(FullStep(2 * number + 1), ROUND)
        update = unpack(second.execute(ExportModel(), ROUND).result)
        assert same(update, expected[number])
        aside = second.set_aside()


def _zeros(layout: Layout) -> Tensors:
    return {name: torch.zeros(shape, dtype=dtype) for name, shape, dtype in layout.form}
