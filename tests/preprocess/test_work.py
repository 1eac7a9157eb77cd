"""What torch's counter does not know: recurrent layers, look-ups, operations of other libraries."""

from __future__ import annotations

from threading import Event, Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.flop_counter import flop_registry, register_flop_formula

from fedoptima.core.method import ServerTraining
from fedoptima.core.plan import BlockProfile, Plan
from fedoptima.preprocess.cuts import cuttable
from fedoptima.preprocess.plan import PlanSettings, make_plan
from fedoptima.preprocess.profile import profile, profile_module
from fedoptima.preprocess.sides import MeasuredCosts
from fedoptima.preprocess.split import DeviceSpeed
from fedoptima.preprocess.work import counter, plain_kernels

SAMPLES, LENGTH, WIDTH, HIDDEN = 2, 5, 8, 16
WORDS = torch.arange(10).view(SAMPLES, LENGTH)
STEPS = torch.rand(SAMPLES, LENGTH, WIDTH)
GATES = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}


class Recurrent(nn.Module):
    """The outputs of a recurrent layer, without its last state."""

    def __init__(self, kind: type[nn.Module], **options: Any) -> None:
        super().__init__()
        self.layer = kind(WIDTH, HIDDEN, batch_first=True, **options)

    def forward(self, steps: Tensor) -> Tensor:
        output: Tensor = self.layer(steps)[0]
        return output


class Packed(Recurrent):
    def forward(self, steps: Tensor) -> Tensor:
        packed = pack_padded_sequence(steps, torch.tensor([5, 3]), batch_first=True)
        output: Tensor = pad_packed_sequence(self.layer(packed)[0], batch_first=True)[0]
        return output


class Cell(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.cell = kind(WIDTH, HIDDEN)

    def forward(self, steps: Tensor) -> Tensor:
        state = self.cell(steps[:, 0])
        return state[0] if isinstance(state, tuple) else state


def products(gates: int, inputs: int = WIDTH, hidden: int = HIDDEN, out: int = HIDDEN) -> int:
    """FLOPs of one step of one layer in one direction."""
    return 2 * gates * hidden * (inputs + out)


@pytest.mark.parametrize("kind", GATES)
def test_a_recurrent_layer_costs_the_products_of_its_gates(kind: type[nn.Module]) -> None:
    cost = profile_module(Recurrent(kind), STEPS)
    step = products(GATES[kind])
    assert cost.forward_flops == LENGTH * step
    # twice as much backward, but the state before the first step needs no gradient
    assert cost.backward_flops == 2 * LENGTH * step - 2 * GATES[kind] * HIDDEN * HIDDEN
    assert cost.by_formula == ()


def test_several_layers_and_both_directions_are_counted() -> None:
    cost = profile_module(Recurrent(nn.LSTM, num_layers=2, bidirectional=True), STEPS)
    second = products(4, inputs=2 * HIDDEN)
    assert cost.forward_flops == 2 * LENGTH * (products(4) + second)


def test_a_projected_state_is_counted_with_its_projection() -> None:
    cost = profile_module(Recurrent(nn.LSTM, proj_size=4), STEPS)
    assert cost.forward_flops == LENGTH * (products(4, out=4) + 2 * HIDDEN * 4)


@pytest.mark.parametrize("kind", GATES)
def test_a_packed_sequence_costs_what_is_not_padding(kind: type[nn.Module]) -> None:
    whole = profile_module(Recurrent(kind), STEPS)
    packed = profile_module(Packed(kind), STEPS)
    assert packed.forward_flops * 2 * LENGTH == whole.forward_flops * (5 + 3)


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTMCell, 4), (nn.GRUCell, 3), (nn.RNNCell, 1)])
def test_a_cell_costs_one_step(kind: type[nn.Module], gates: int) -> None:
    assert profile_module(Cell(kind), STEPS).forward_flops == products(gates)


def test_counting_leaves_the_fast_kernels_switched_as_they_were() -> None:
    before = (torch.backends.mkldnn.enabled, torch.backends.mha.get_fastpath_enabled())
    profile_module(Recurrent(nn.LSTM), STEPS)
    assert (torch.backends.mkldnn.enabled, torch.backends.mha.get_fastpath_enabled()) == before


def test_modules_of_other_threads_are_left_alone_while_work_is_counted() -> None:
    """Two devices of one process: hooks of the whole process failed in the other's network."""
    network, called = nn.Sequential(nn.Linear(3, 3)), []
    with counter():
        assert not torch.nn.modules.module._global_forward_pre_hooks
        thread = Thread(target=lambda: called.append(network(torch.ones(1, 3))))
        thread.start()
        thread.join()
    assert len(called) == 1


def test_a_look_up_costs_one_for_each_element_that_it_writes() -> None:
    words = nn.Sequential(nn.Embedding(10, WIDTH), nn.Flatten(), nn.Linear(LENGTH * WIDTH, 3))
    first = profile(cuttable(words, WORDS), WORDS).blocks[0]
    assert (first.forward_flops, first.backward_flops) == (LENGTH * WIDTH, LENGTH * WIDTH)
    assert first.by_formula == ("aten::embedding",)


def test_a_bag_of_words_costs_something() -> None:
    bag = nn.Sequential(nn.EmbeddingBag(10, WIDTH), nn.Linear(WIDTH, 3))
    first = profile(cuttable(bag, WORDS), WORDS).blocks[0]
    assert first.forward_flops >= WIDTH
    assert "aten::_embedding_bag" in first.by_formula


def test_the_look_up_inside_a_counted_block_changes_nothing() -> None:
    block = nn.Sequential(nn.Embedding(10, WIDTH), nn.Linear(WIDTH, 3))
    cost = profile_module(block, WORDS)
    assert cost.forward_flops == 2 * LENGTH * WIDTH * 3
    assert cost.by_formula == ()


def test_normalising_alone_costs_an_operation_per_element_and_gradient() -> None:
    cost = profile_module(nn.LayerNorm(WIDTH, elementwise_affine=True), STEPS)
    assert cost.forward_flops >= LENGTH * WIDTH
    assert cost.backward_flops == 2 * cost.forward_flops


def test_a_frozen_encoder_layer_costs_what_a_trained_one_costs_forward() -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)
    trained = profile_module(layer, STEPS).forward_flops
    frozen = profile_module(layer.requires_grad_(False), STEPS)
    with torch.no_grad():
        whole = nn.Sequential(layer, nn.Flatten(), nn.Linear(LENGTH * WIDTH, 3))
        first = profile(cuttable(whole, STEPS), STEPS).blocks[0]
    assert trained == frozen.forward_flops == first.forward_flops > 0


def test_a_bilinear_layer_and_a_product_with_a_vector_are_counted() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bilinear = nn.Bilinear(WIDTH, WIDTH, 4, bias=False)
            self.vector = nn.Parameter(torch.rand(4))

        def forward(self, steps: Tensor) -> Tensor:
            return self.bilinear(steps, steps) @ self.vector

    cost = profile_module(Both(), STEPS)
    assert cost.forward_flops == 2 * LENGTH * (4 * WIDTH * WIDTH + 4)


# ---- operations of other libraries -------------------------------------------------------------


@torch.library.custom_op("fedoptima_tests::doubled", mutates_args=())
def doubled(values: Tensor) -> Tensor:
    return values * 2


class Foreign(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 3)

    def forward(self, steps: Tensor) -> Tensor:
        return self.linear(doubled(steps).detach())


def test_an_unknown_operation_is_named_and_costs_one_per_element() -> None:
    cost = profile_module(Foreign(), STEPS)
    assert cost.forward_flops == LENGTH * (2 * WIDTH * 3 + WIDTH)
    assert cost.by_formula == ("fedoptima_tests::doubled",)


def test_an_operation_with_a_registered_formula_is_counted() -> None:
    operation = torch.ops.fedoptima_tests.doubled
    register_flop_formula(operation)(lambda shape, **_: 1000)
    try:
        cost = profile_module(Foreign(), STEPS)
    finally:
        del flop_registry[operation]
    assert cost.forward_flops == LENGTH * 2 * WIDTH * 3 + 1000 / SAMPLES
    assert cost.by_formula == ()


# ---- the plan ----------------------------------------------------------------------------------


def test_a_free_first_block_divides_nothing_by_zero() -> None:
    class Free(nn.Linear):
        """Has weights, and leaves them aside."""

        def forward(self, steps: Tensor) -> Tensor:
            return steps.flatten(1)

    model = nn.Sequential(Free(WIDTH, WIDTH), nn.Linear(LENGTH * WIDTH, 3))
    settings = PlanSettings(ServerTraining.PER_DEVICE, 8, 3, seed=1, split=1, micro_batches=0)
    plan = make_plan(MeasuredCosts(model, STEPS, settings), [DeviceSpeed(1e9, 1e6)], settings)
    assert plan.device_blocks[0].forward_flops == 0
    assert plan.micro_batches == 4


def test_what_was_counted_by_formula_is_kept_in_the_plan() -> None:
    first = BlockProfile("words", 40.0, 40.0, 160, 160, 80, 320, ("aten::embedding",))
    second = BlockProfile("head", 40.0, 40.0, 160, 160, 80, 320)
    plan = Plan((first, second), 1, "none", None, "paper", ())
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.to_json().count("by_formula") == 1


def test_counting_switches_nothing_off_that_other_threads_convolutions_use() -> None:
    """They would round otherwise, and a run would not be what its record says."""
    convolution, recurrent = nn.Conv2d(1, 2, 3), nn.Sequential(nn.Flatten(), nn.GRU(4, 4))
    with plain_kernels(convolution):
        assert torch.backends.mkldnn.enabled
    with plain_kernels(recurrent):
        assert not torch.backends.mkldnn.enabled


def test_threads_that_count_at_once_leave_the_switches_as_they_were() -> None:
    """One that comes while another counts must not take its setting for the usual one."""
    before = (torch.backends.mkldnn.enabled, torch.backends.mha.get_fastpath_enabled())
    second_counts, first_is_done = Event(), Event()

    def count() -> None:
        with plain_kernels(nn.LSTM(2, 2)):
            second_counts.set()
            first_is_done.wait(10)

    second = Thread(target=count)
    with plain_kernels(nn.LSTM(2, 2)):
        second.start()
        second_counts.wait(0.5)  # it could, without a lock
    first_is_done.set()
    second.join()
    assert (torch.backends.mkldnn.enabled, torch.backends.mha.get_fastpath_enabled()) == before
