from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedoptima.core.errors import ConfigError
from fedoptima.preprocess.probe import (
    Probing,
    estimate_bandwidth,
    measure_speed,
)


class Machine(nn.Module):
    """A module that takes the given seconds per run, on a clock of its own."""

    now = 0.0

    def __init__(self, seconds: Sequence[float]) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.seconds = seconds
        self.runs = 0

    def forward(self, values: Tensor) -> Tensor:
        Machine.now += self.seconds[min(self.runs, len(self.seconds) - 1)]
        self.runs += 1
        return self.linear(values)


@pytest.fixture
def clock() -> Callable[[], float]:
    Machine.now = 0.0
    return lambda: Machine.now


def test_the_speed_is_work_over_the_median_time(clock: Callable[[], float]) -> None:
    # the first run warms up, one of the others hiccups
    machine = Machine([60.0, 2.0, 90.0, 2.0, 2.0])
    speed = measure_speed(machine, torch.rand(1, 2), 100.0, seconds_budget=0.0, clock=clock)
    assert speed == 50.0


def test_runs_go_on_until_the_budget_is_spent(clock: Callable[[], float]) -> None:
    measure_speed(Machine([1.0]), torch.rand(1, 2), 1.0, seconds_budget=10.0, clock=clock)
    assert Machine.now == 11.0


def test_measuring_leaves_the_module_and_the_generator_alone() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.5))
    generator = torch.get_rng_state()
    measure_speed(network, torch.rand(4, 2, generator=torch.Generator()), 1.0, seconds_budget=0)
    assert torch.equal(torch.get_rng_state(), generator)
    assert network[1].num_batches_tracked == 0
    assert all(parameter.grad is None for parameter in network.parameters())


def test_no_work_has_no_speed() -> None:
    with pytest.raises(ConfigError, match="flops = 0"):
        measure_speed(nn.Identity(), torch.rand(1, 2), 0)


SIZES = (10_000, 50_000, 200_000, 1_000_000, 4_000_000)


@given(
    st.floats(1e4, 1e9),
    st.floats(0.0, 0.5),
    st.integers(0, len(SIZES) - 1),
    st.one_of(st.just(0.0), st.floats(5.0, 100.0)),
)
def test_one_stalled_transfer_does_not_change_the_estimate(
    bandwidth: float, latency: float, stalled: int, stall: float
) -> None:
    samples = [(size, latency + size / bandwidth) for size in SIZES]
    samples[stalled] = (SIZES[stalled], samples[stalled][1] + stall)
    found, found_latency = estimate_bandwidth(samples)
    assert found == pytest.approx(bandwidth, rel=1e-3)
    assert found_latency == pytest.approx(latency, abs=1e-3)


def test_one_transfer_is_enough_for_a_guess() -> None:
    assert estimate_bandwidth([(1000, 0.5)]) == (2000.0, 0.0)


def test_a_latency_is_never_negative() -> None:
    bandwidth, latency = estimate_bandwidth([(1000, 0.1), (2000, 0.4)])
    assert latency == 0.0
    assert 1000 / 0.1 > bandwidth > 2000 / 0.4 - 1


def test_larger_transfers_that_took_less_time_still_give_a_bandwidth() -> None:
    bandwidth, latency = estimate_bandwidth([(1000, 0.4), (2000, 0.1)])
    assert bandwidth > 0
    assert latency == 0.0


@pytest.mark.parametrize("samples", [[], [(0, 1.0)], [(10, 0.0)], [(10, 1.0), (-1, 1.0)]])
def test_transfers_that_cannot_have_been_are_refused(samples: list[tuple[int, float]]) -> None:
    with pytest.raises(ConfigError):
        estimate_bandwidth(samples)


def probe(bandwidth: float, latency: float = 0.0) -> tuple[Probing, list[int], float]:
    """A probing of such a link, the transfers it asked for, and how long it took."""
    probing, sizes, spent = Probing(), [], 0.0
    while (nbytes := probing.next_size()) is not None:
        seconds = latency + nbytes / bandwidth
        probing.took(nbytes, seconds)
        sizes.append(nbytes)
        spent += seconds
    return probing, sizes, spent


@pytest.mark.parametrize("mbps", [1.0, 4.0, 50.0, 1000.0, 10000.0])
@pytest.mark.parametrize("latency", [0.0, 0.02])
def test_a_probed_link_is_known_after_two_seconds(mbps: float, latency: float) -> None:
    probing, sizes, spent = probe(mbps * 1e6 / 8, latency)
    assert spent < 2.0
    if len(sizes) > 1:  # one transfer cannot tell the latency from the bandwidth
        assert probing.bytes_per_second() == pytest.approx(mbps * 1e6 / 8)


def test_transfers_double_until_one_takes_long_or_is_as_large_as_a_batch() -> None:
    kib = 1024
    assert probe(1e9)[1] == [32 * kib * 2**i for i in range(8)]
    assert probe(1e9)[1][-1] == 4 * kib * kib
    assert probe(1e6)[1] == [32 * kib, 64 * kib, 128 * kib, 256 * kib]
    assert probe(1e4)[1] == [32 * kib]


def test_a_transfer_that_the_clock_did_not_see_does_not_break_the_estimate() -> None:
    probing = Probing()
    probing.took(1000, 0.0)
    assert probing.bytes_per_second() > 0
