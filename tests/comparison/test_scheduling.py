"""The scheduler ablation: where it can show something, and that elsewhere it is the same run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedoptima.comparison.dry_pace import Conditions, conditions_of
from fedoptima.comparison.scheduling import (
    Ablation,
    Outcome,
    Setting,
    ablate,
    as_table,
    settings,
)
from fedoptima.core.types import NodeId
from tests.comparison.recipes import tiny


def test_with_a_server_that_keeps_up_both_schedulers_use_the_same_batches(tmp_path: Path) -> None:
    recipe = tiny(tmp_path)
    quick = replace(conditions_of(recipe), server_gflops=3000.0)
    found = ablate(recipe, Setting("quick server", quick), epochs=3)
    assert found.same
    assert found.moved == 0
    assert found.counter.jain == found.fifo.jain
    assert found.counter.useful == found.fifo.useful
    assert as_table([found])[-1].endswith("| yes | 0.0 |")


def test_where_batches_wait_the_counter_balances_the_devices(tmp_path: Path) -> None:
    recipe = tiny(tmp_path)
    slow_server = replace(conditions_of(recipe), mbps=500.0, server_gflops=0.5)
    for setting in (Setting("slow", slow_server), Setting("omega", conditions_of(recipe), cap=2)):
        found = ablate(recipe, setting, epochs=6)
        assert not found.same
        assert 0 < found.moved <= 1
        assert found.counter.jain is not None
        assert found.fifo.jain is not None
        assert found.counter.jain > found.fifo.jain
        assert found.plain()["same"] is False


def test_steps_are_the_same_in_another_order_or_others() -> None:
    def outcome(*steps: tuple[str, int]) -> Outcome:
        return Outcome(1.0, 1.0, 0.0, tuple((NodeId(device), seq) for device, seq in steps))

    setting = Setting("x", Conditions(1.0, 1.0, 0.0, 1.0))
    first = outcome(("a", 1), ("b", 1), ("a", 2), ("b", 2))
    swapped = Ablation(setting, first, outcome(("b", 1), ("a", 1), ("a", 2), ("b", 2)))
    assert (swapped.same, swapped.moved) == (True, 0.5)
    other = Ablation(setting, first, outcome(("a", 1), ("b", 1), ("a", 2)))
    assert (other.same, other.moved) == (False, 0.25)


def test_the_settings_are_those_in_which_batches_wait(tmp_path: Path) -> None:
    made = {
        setting.name: setting for setting in settings(tiny(tmp_path, "fleet.devices.1.count=7"))
    }
    assert made["as described"].conditions == conditions_of(tiny(tmp_path))
    assert made["links x 8"].conditions.mbps == 40.0
    assert made["server / 7.5"].conditions.server_gflops == 0.4
    assert [setting.cap for setting in made.values() if setting.cap] == [4, 4, 2, 2]
