from __future__ import annotations

import pytest

from fedoptima.analysis.balance import Balance, Contribution
from fedoptima.analysis.influence import influence_warnings
from fedoptima.core.types import NodeId


def balance(handed_in: int = 9, **devices: tuple[float, float]) -> Balance:
    """Devices with their parts of the data and of the merge weight."""
    return Balance(
        {
            NodeId(name): Contribution(
                0, 0, 0, 0, round(100 * had), had, had, held, handed_in=handed_in
            )
            for name, (held, had) in devices.items()
        },
        None,
        None,
    )


def warnings(method: str = "fedoptima", **devices: tuple[float, float]) -> list[str]:
    return list(influence_warnings(balance(**devices), method))


def test_a_device_that_took_over_is_named_with_the_way_out_and_so_are_the_others() -> None:
    little, much = warnings(big=(0.5, 0.0), other=(0.497, 0.0), tiny=(0.003, 1.0))
    assert little.startswith("big and other held 99.7 % of the data and had 0.0 % of the merge")
    assert "leave method.max_delay out" in little
    assert much.startswith("tiny held 0.3 % of the data and had 100.0 % of the merge weight")
    assert "lower method.alpha_max" in much


@pytest.mark.parametrize(("had", "warned"), [(0.5 / 19, False), (0.5 / 21, True)])
def test_the_factor_is_twenty(had: float, warned: bool) -> None:
    assert bool(warnings(slow=(0.5, had), fast=(0.5, 1 - had))) == warned


@pytest.mark.parametrize(("handed_in", "warned"), [(2, False), (3, True)])
def test_a_run_too_short_for_a_device_says_nothing_of_it(handed_in: int, warned: bool) -> None:
    """Its last update came when the run was over, or too late once."""
    found = influence_warnings(balance(handed_in, slow=(0.5, 0.0), fast=(0.5, 1.0)), "fedoptima")
    assert bool(list(found)) == warned


def test_behind_a_barrier_the_way_out_is_its_timeout() -> None:
    (said,) = warnings("fl", late=(0.5, 0.0), fast=(0.5, 1.0))
    assert "raise method.barrier_timeout" in said


def test_a_run_without_merges_has_no_warning() -> None:
    assert warnings(a=(0.5, 0.0), b=(0.5, 0.0)) == []
