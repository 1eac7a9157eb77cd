"""A run's facts: resolved when it begins, the same in config.json and in the trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedoptima.experiments.server_setup import prepare_server
from fedoptima.trace.description import Mode, RunDescription, read_config
from fedoptima.trace.reader import read_description
from fedoptima.trace.run_folder import RunFiles
from tests.experiments.runs import FLEET, run
from tests.support.network import tiny_recipe


def described_by(folder: Path) -> RunDescription:
    files = RunFiles(folder)
    known = read_config(files.config)
    assert read_description(files.trace) == known
    return known


def test_a_simulations_facts_are_in_both_files(tmp_path: Path) -> None:
    run(out=tmp_path / "run", dry=True, epochs=1.0)
    known = described_by(tmp_path / "run")
    assert (known.mode, known.dry, known.devices, known.starts_with) == (Mode.SIMULATED, True, 3, 3)
    assert set(known.versions) == {"fedoptima", "torch", "python"}
    assert known.seed == 1


def test_who_joins_later_is_one_of_the_devices_but_is_not_waited_for(tmp_path: Path) -> None:
    devices: Any = FLEET["devices"]
    late = {"name": "late", "gflops": 0.002, "joins_at": 0.01}
    fleet = {**FLEET, "devices": [*devices, late]}
    run(out=tmp_path / "run", dry=True, epochs=1.0, fleet=fleet)
    known = described_by(tmp_path / "run")
    assert (known.devices, known.starts_with) == (4, 3)


@pytest.mark.parametrize(
    ("method", "cap", "options"),
    [
        ({"name": "fedoptima"}, 32, {"activation_cap": 32, "max_delay": 24, "alpha": 1.0}),
        (
            {"name": "fedoptima", "activation_cap": 4},
            4,
            {"auxiliary": "default"},
        ),
        ({"name": "fedoptima", "auxiliary": "none"}, None, {"auxiliary": "none"}),
        ({"name": "fedbuff", "staleness_b": 2.0}, None, {"buffer": 3, "staleness_b": 2.0}),
        ({"name": "fl"}, None, {"on_leave": "keep"}),
    ],
)
def test_the_methods_options_are_those_it_was_built_with(
    tmp_path: Path, method: dict[str, object], cap: int | None, options: dict[str, object]
) -> None:
    run(out=tmp_path / "run", dry=True, epochs=1.0, method=method)
    known = described_by(tmp_path / "run")
    assert (known.method, known.activation_cap) == (method["name"], cap)
    assert options.items() <= known.options.items()


def test_over_the_network_the_method_is_built_for_the_devices_expected() -> None:
    setup = prepare_server(tiny_recipe("fedoptima", deploy={"devices": 40}))
    known = setup.describe()
    assert (known.mode, known.devices, known.starts_with) == (Mode.NETWORK, 40, 40)
    assert known.activation_cap == setup.method.flow().cap == 80
