"""Importing fedoptima and simulating with it loads torch, numpy, pydantic, safetensors: no more.

A bare GPU machine has only these, and a small board should not pay for what it does not use. Each
check runs in a fresh interpreter, because this one has long loaded half of what is forbidden.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest

ALLOWED = ("torch", "numpy", "pydantic", "safetensors")  # with what these need themselves

NEVER = {
    *("pyarrow", "pandas", "PIL", "sklearn", "scipy"),  # data
    *("plotly", "matplotlib", "rich", "typer"),  # reports, command line
    *("starlette", "uvicorn", "grpc", "google.protobuf"),  # dashboard, deployment
    *("tensorboard", "mlflow", "prometheus_client"),  # tracking
    "ray",  # many machines
}

SIMULATION = """
import torch, fedoptima, fedoptima.sim.driver
inputs, labels = torch.randn(40, 6), torch.arange(40) % 2
fedoptima.simulate(
    model=torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 2)),
    train=(inputs, labels),
    test=(inputs, labels),
    fleet={"server": {"gflops": 1.0}, "devices": [{"name": "d", "count": 2, "gflops": 1.0}]},
    method=METHOD,
    training={"batch_size": 5},
    epochs=1,
)
"""
WAYS_IN = {
    "import": "import fedoptima",
    "attributes": "import fedoptima; "
    "fedoptima.simulate, fedoptima.compare, fedoptima.sweep, fedoptima.plan",
    "simulation": SIMULATION.replace("METHOD", "'fedoptima'")
    + SIMULATION.replace("METHOD", "'fl'"),
}


ROOT = Path(__file__).parents[1]


def newly_loaded(statements: str) -> set[str]:
    """The modules that the statements load in a fresh interpreter."""
    script = (
        "import json, sys; before = set(sys.modules)\n"
        f"{statements}\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def normalised(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def closure(distributions: tuple[str, ...]) -> set[str]:
    """The distributions and everything they require here, extras left out."""
    found: set[str] = set()
    waiting = list(distributions)
    while waiting:
        name = normalised(waiting.pop())
        if name in found:
            continue
        try:
            requirements = requires(name) or []
        except PackageNotFoundError:  # required on another platform only
            continue
        found.add(name)
        waiting += [
            re.split(r"[^\w.-]", text, maxsplit=1)[0]
            for text in requirements
            if "extra ==" not in text
        ]
    return found


PLAIN_TORCH = """
import torch
layer = torch.nn.Linear(2, 2)
torch.optim.SGD(layer.parameters(), lr=0.1).step()
"""


@functools.cache
def loaded_by_torch() -> frozenset[str]:
    """What torch itself loads where it is installed, as colorama, without requiring it."""
    return frozenset(newly_loaded(PLAIN_TORCH))


def foreign(modules: set[str]) -> set[str]:
    """Those installed distributions among ``modules``' owners that are not allowed."""
    modules = modules - loaded_by_torch()
    owners = packages_distributions()
    tops = {module.partition(".")[0] for module in modules} - sys.stdlib_module_names
    loaded = {normalised(owner) for top in tops for owner in owners.get(top, [])}
    return loaded - closure(ALLOWED) - {"fedoptima"}


@pytest.mark.parametrize("way_in", WAYS_IN)
def test_only_torch_numpy_pydantic_and_safetensors_are_loaded(way_in: str) -> None:
    loaded = newly_loaded(WAYS_IN[way_in])
    assert loaded & NEVER == set()
    assert foreign(loaded) == set()


def test_the_digits_are_read_without_loading_scikit_learn() -> None:
    loaded = newly_loaded(
        "from fedoptima.data.registry import load_dataset; load_dataset('digits')"
    )
    assert loaded & NEVER == set()


def loaded_by_command(*arguments: str) -> set[str]:
    """The modules that a command of ours loads."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "fedoptima", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = (line for line in done.stderr.splitlines() if line.startswith("import time:"))
    return {line.rpartition("|")[2].strip() for line in lines}


@pytest.mark.parametrize("command", [[], ["simulate"], ["compare"], ["plan"], ["server"]], ids=str)
def test_help_is_shown_without_loading_torch(command: list[str]) -> None:
    loaded = loaded_by_command(*command, "--help")
    assert "fedoptima.cli.app" in loaded
    assert {"torch", "numpy"} & loaded == set()


DRY_RUNS = """
import sys
from contextlib import redirect_stdout
from pathlib import Path
from fedoptima.cli.app import app
for recipe in {recipes!r}:
    out = Path({folder!r}) / Path(recipe).stem
    sets = ["--set", "stop.rounds=1", "--set", "data.directory=" + {folder!r} + "/data"]
    with redirect_stdout(sys.stderr):
        app(["simulate", "--dry", recipe, "--out", str(out), *sets], standalone_mode=False)
    assert not {{"torch", "numpy", "safetensors"}} & set(sys.modules), recipe
"""


def test_dry_runs_of_our_own_models_and_data_load_no_torch(tmp_path: Path) -> None:
    """Also where the data set is not on disk. One after the other: to start takes the longest."""
    recipes = sorted(map(str, ROOT.glob("recipes/*.toml")))
    loaded = newly_loaded(DRY_RUNS.format(recipes=recipes, folder=str(tmp_path)))
    assert "fedoptima.sim.driver" in loaded
    assert len(list(tmp_path.glob("*/summary.json"))) == len(recipes) > 5


def test_a_simulation_starts_without_loading_the_compiler() -> None:
    """It takes as long as torch. An optimiser's first step loads it."""
    loaded = newly_loaded(
        "from fedoptima.engine.determinism import deterministic\nwith deterministic(1): pass"
    )
    assert "torch" in loaded
    assert {"torch._dynamo", "torch._inductor"} & loaded == set()


def test_a_heavy_import_is_caught() -> None:
    loaded = newly_loaded("import fedoptima, rich, sklearn")
    assert {"rich", "sklearn"} <= loaded & NEVER
    assert {"rich", "scikit-learn", "scipy"} <= foreign(loaded)


def test_benchmarks_and_tools_import_what_is_there() -> None:
    """Nothing else would notice a name that has moved before somebody measures again."""
    files = [*ROOT.glob("benchmarks/*.py"), *ROOT.glob("tools/**/*.py")]
    modules = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    assert len(modules) > 20
    newly_loaded("; ".join(f"import {name}" for name in modules))
