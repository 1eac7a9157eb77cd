"""No batch of one device moves the server side much more than those of the others do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedoptima.core.jobs import Part, RobustMerge, ServerStep
from fedoptima.core.robust import RobustBarrier, refusals
from fedoptima.core.types import NodeId, Payload
from fedoptima.engine.payloads import unpack
from fedoptima.engine.server import ServerEngine
from fedoptima.engine.step_guard import StepGuard
from tests.engine.bench import Bench, dense_model, payload, same, samples

HIDDEN = [torch.ones(7, 8)]
D = [NodeId(f"d{number}") for number in range(6)]


def seen(guard: StepGuard, devices: int = 4, norm: float = 3.0) -> StepGuard:
    for device in D[:devices]:
        guard.limit(device, HIDDEN, [torch.full((1,), norm)])
    return guard


def test_a_gradient_is_clipped_to_the_fleets_median_and_smaller_ones_stay() -> None:
    guard = seen(StepGuard())
    large, small = torch.tensor([30.0, 40.0]), torch.tensor([0.3, 0.4])
    guard.limit(D[4], HIDDEN, [large[:1], large[1:]])
    assert torch.allclose(large, torch.tensor([1.8, 2.4]))  # of norm 3
    guard.limit(D[5], HIDDEN, [small])
    assert torch.equal(small, torch.tensor([0.3, 0.4]))


def test_no_gradient_at_all_stays_none() -> None:
    nothing = torch.zeros(3)
    seen(StepGuard(), norm=0.0).limit(D[4], HIDDEN, [nothing])
    assert torch.equal(nothing, torch.zeros(3))


@pytest.mark.parametrize("factor", [4.0, 0.25, -4.0])
def test_activations_of_another_size_are_not_to_be_used(factor: float) -> None:
    gradients = [torch.ones(1)]
    assert seen(StepGuard()).limit(D[4], [HIDDEN[0] * factor], gradients)
    assert not seen(StepGuard()).limit(D[4], [HIDDEN[0] * 1.5], gradients)
    assert not seen(StepGuard(), devices=2).limit(D[4], [HIDDEN[0] * factor], gradients)


def test_it_continues_from_a_checkpoint() -> None:
    guard, restored = seen(StepGuard()), StepGuard()
    restored.restore(*guard.save())
    for one in (guard, restored):
        gradient = torch.tensor([30.0])
        one.limit(D[4], HIDDEN, [gradient])
        assert gradient == 3.0


# ---- in the engine -----------------------------------------------------------------------------


def bench(robust: RobustBarrier) -> tuple[Bench, ServerEngine]:
    made = Bench(dense_model(), samples())
    engine = ServerEngine(replace(made.workload, robust=robust))
    engine.restore(*made.server.save())
    return made, engine


def batch(factor: float = 1.0) -> Payload:
    hidden, labels = samples(7, 8)
    return payload(**{"activations.0": hidden * factor, "labels": labels})


def step(engine: ServerEngine, device: NodeId, factor: float = 1.0) -> bool:
    """Did the weights change?"""
    before = engine.export()
    engine.execute(ServerStep(device, 1, 0, batch(factor), 0.0), batch().id)
    return not same(engine.export(), before)


def test_a_batch_that_stands_out_is_left_out_if_outliers_are_refused() -> None:
    for robust, used in (("none", True), ("clip", True), ("refuse", False)):
        _, engine = bench(robust)  # type: ignore[arg-type]
        assert all(step(engine, device) for device in D[:4])
        assert step(engine, D[4], factor=5.0) == used
        assert step(engine, D[5])


def test_a_device_whose_last_update_was_refused_does_not_train_the_server_side() -> None:
    made, engine = bench("refuse")
    first = unpack(made.first_model)

    def hands_in(device: NodeId, change: float) -> dict[int, str]:
        update = payload(**{name: tensor + change for name, tensor in first.items()})
        part = Part(device, 0.1, update)
        merge = RobustMerge(0.9, (part,), (device,), None, (made.first_model,), (0.1,))
        return refusals(engine.execute(merge, batch().id).text)

    assert not any(hands_in(device, 0.1) for device in D[:5])
    assert hands_in(D[5], -0.1)
    assert not step(engine, D[5])
    assert step(engine, D[0])
    assert not [hands_in(D[5], 0.1) for _ in range(10)][-1]  # it is taken back
    assert step(engine, D[5])
