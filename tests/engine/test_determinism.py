"""Another thread computes what the main one would, bit for bit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from fedoptima.core.jobs import AuxiliaryStep, Forward, ServerStep
from fedoptima.core.types import NodeId
from fedoptima.engine.determinism import deterministic, draws_nothing, prepare_thread
from fedoptima.engine.payloads import Tensors
from tests.engine.bench import Bench, dense_model, same, samples, state


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def on_a_thread(*work: Callable[[], object]) -> list[object]:
    results: list[object] = []

    def run() -> None:
        results.extend(each() for each in work)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return results


def test_a_thread_gets_the_number_of_helpers_it_is_told() -> None:
    assert on_a_thread(lambda: prepare_thread(3), torch.get_num_threads)[1] == 3
    assert on_a_thread(lambda: prepare_thread(2), torch.get_num_threads)[1] == 2


def test_a_thread_that_is_told_nothing_gets_the_number_of_the_process() -> None:
    with deterministic(3):
        assert on_a_thread(prepare_thread, torch.get_num_threads)[1] == 3


def network() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
            nn.Sequential(
                nn.Dropout(0.3), nn.Flatten(), nn.Linear(16 * 64, 200), nn.ReLU(), nn.Linear(200, 3)
            ),
        )


def steps(bench: Bench) -> tuple[Tensors, Tensors]:
    for step in range(3):
        sent = bench.at("d", Forward(step)).result
        bench.at("d", AuxiliaryStep(step))
        bench.at_server(ServerStep(NodeId("d"), 1, step, sent, 0.0))
    return state(bench.devices["d"]), bench.server.export()


@pytest.mark.parametrize("threads", [1, 2])
def test_steps_on_a_prepared_thread_give_the_main_threads_weights(threads: int) -> None:
    data = samples(64, 3, 8, 8)
    with deterministic(threads):
        here = steps(Bench(network(), data, batch=16))
    with deterministic(threads):
        found: list[tuple[Tensors, Tensors]] = []
        other = Bench(network(), data, batch=16)
        on_a_thread(lambda: prepare_thread(threads), lambda: found.append(steps(other)))
    assert same(here[0], found[0][0])
    assert same(here[1], found[0][1])


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_kernels_are_reproducible_for_the_time_of_a_run_and_then_as_before(mode: int) -> None:
    import torch._inductor.config as compiler

    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode(mode)
    try:
        with deterministic():
            assert torch.are_deterministic_algorithms_enabled()
            assert torch.is_deterministic_algorithms_warn_only_enabled()
            assert compiler.deterministic
        assert torch.get_deterministic_debug_mode() == mode
        assert compiler.deterministic == (mode > 0)
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_deterministic_debug_mode(before)


class Noisy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn_like(x)


def hooked(layer: nn.Module) -> nn.Module:
    layer.register_forward_hook(lambda _, __, output: output + torch.rand_like(output))
    return layer


@pytest.mark.parametrize(
    ("layer", "nothing"),
    [
        (nn.ReLU(), True),
        (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), True),
        (nn.Dropout(0.1), False),
        (nn.Sequential(nn.Dropout(0.0)), False),  # how much may be changed later
        (nn.RReLU(), False),
        (Noisy(), False),
        (hooked(nn.ReLU()), False),
    ],
)
def test_only_of_known_layers_it_is_said_that_they_draw_nothing(
    layer: nn.Module, nothing: bool
) -> None:
    assert draws_nothing(nn.Sequential(nn.Linear(2, 2), layer)) is nothing


@pytest.mark.parametrize("share", [None, 0.5])
def test_a_server_step_seeds_the_generator_if_something_may_draw(share: float | None) -> None:
    model = dense_model() if share is None else nn.Sequential(*dense_model(), nn.Dropout(share))
    bench = Bench(model, samples())
    sent = bench.at("d", Forward(0)).result
    before = torch.get_rng_state()
    bench.at_server(ServerStep(NodeId("d"), 1, 0, sent, 0.0))
    assert torch.equal(before, torch.get_rng_state()) == (share is None)


@pytest.mark.parametrize("share", [None, 0.5])
def test_a_devices_step_seeds_the_generator_if_something_may_draw(share: float | None) -> None:
    front, *rest = dense_model()
    bench = Bench(nn.Sequential(front, *([nn.Dropout(share)] if share else []), *rest), samples())
    before = torch.get_rng_state()
    for job in (Forward(0), AuxiliaryStep(0)):
        bench.at("d", job)
        assert torch.equal(before, torch.get_rng_state()) == (share is None)
        torch.set_rng_state(before)
