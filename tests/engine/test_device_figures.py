"""Figures of each device, their mean, and the worst of them."""

from __future__ import annotations

import pytest

from fedoptima.core.stopping import StopRule
from fedoptima.engine.device_figures import with_devices

FIGURES = {"a": (("misses", 0.1), ("loss", 2.0)), "b": (("misses", 0.3), ("loss", 1.0))}


@pytest.mark.parametrize(
    ("rule", "worst"),
    [
        (StopRule(epochs=1), 0.1),
        (StopRule(epochs=1, metric="misses", direction="min"), 0.3),
        (StopRule(epochs=1, metric="devices_worst_misses", direction="min"), 0.3),
        (StopRule(epochs=1, metric="f1", direction="min"), 0.1),
    ],
    ids=["more is better", "less is better", "of the worst device", "of another metric"],
)
def test_the_worst_device_is_that_of_the_metrics_direction(rule: StopRule, worst: float) -> None:
    found = dict(with_devices((), FIGURES, rule.falls))
    assert found["devices_worst_misses"] == worst
    assert found["devices_mean_misses"] == pytest.approx(0.2)
    assert found["devices_worst_loss"] == 2.0
    assert found["misses@b"] == 0.3
