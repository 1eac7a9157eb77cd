"""The import rules of docs/architecture.md, and the purity of the core, read from the source text.

The checks are functions over (path, source), so the second half of this file can feed them broken
source and see them fail. Imports inside functions and under TYPE_CHECKING count like any other.
"""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath

import pytest

import fedoptima
from tests.support.purity import called_name, imported, purity_violations

PACKAGE = Path(fedoptima.__file__).parent
ROOT = Path(__file__).parents[1]

LEAVES = frozenset({"trace", "config"})
NAMES = frozenset({"named_code"})
TRAINING = (
    frozenset({"engine", "preprocess", "models", "data", "tasks", "methods", "core"})
    | LEAVES
    | NAMES
)
DRIVERS = frozenset({"sim", "runtime"})
WORK = frozenset(
    {"experiments", "comparison", "prediction", "verification", "reporting", "reproduction"}
) | {"fuzzing"}
SHOWN = frozenset({"analysis", "display", "tracking", "dashboard"})

# layer -> what it may import besides itself
MAY_IMPORT: dict[str, frozenset[str]] = {
    "core": frozenset(),
    "version": frozenset(),
    "paper_numbers": frozenset(),  # a table
    "named_code": frozenset({"core"}),
    "trace": frozenset({"core"}),
    "config": frozenset({"core"}),
    "methods": frozenset({"core", "named_code"}),
    "models": frozenset({"core", "named_code"}),
    "tasks": frozenset({"core", "named_code"}),
    "data": frozenset({"models", "tasks", "core", "named_code"}),  # what a model takes in
    "preprocess": frozenset({"models", "tasks", "methods", "core"}) | LEAVES,
    "engine": frozenset({"preprocess", "models", "data", "tasks", "methods", "core"}) | LEAVES,
    "sim": TRAINING,
    "runtime": TRAINING,
    "analysis": frozenset({"core"}) | LEAVES,  # what records mean, from the records alone
    "tracking": frozenset({"core", "analysis"}) | LEAVES,  # to other people's tools
    "display": frozenset({"core", "analysis"}) | LEAVES,  # progress, on a terminal or in a notebook
    "experiments": TRAINING | DRIVERS | {"analysis", "display"},
    "testing": frozenset({"core", "methods", "engine", "sim", "trace"}),
    "fuzzing": frozenset({"core", "methods", "named_code", "sim", "testing"}),
    "verification": TRAINING | {"display", "experiments"},
    "prediction": TRAINING | {"sim", "analysis", "display", "experiments"},
    "comparison": TRAINING | {"analysis", "display", "experiments"},
    "reporting": TRAINING | {"analysis", "display", "experiments", "prediction", "comparison"},
    "reproduction": TRAINING
    | {"sim", "analysis", "experiments", "comparison", "reporting", "paper_numbers"},
    "dashboard": frozenset({"core", "analysis", "reporting"}) | LEAVES,
    "cli": TRAINING | DRIVERS | WORK | SHOWN,
    "__init__": frozenset({"core", "config", "tasks", "version"}) | WORK,
    "__main__": frozenset({"cli"}),
}

MOST_LINES = 350  # CONTRIBUTING.md, rule 9


def layer_of(path: PurePosixPath) -> str:
    """The layer of a file, given its path inside the package."""
    return path.parts[0].removesuffix(".py")


def imported_layer(module: str, name: str | None) -> str | None:
    """The layer of ours that an import reaches, or None for someone else's module."""
    top, *inside = module.split(".")
    if top != "fedoptima":
        return None
    if inside:
        return inside[0]
    if name in MAY_IMPORT:
        return name
    return "version" if name == "__version__" else "__init__"  # a public name


def layering_violations(path: PurePosixPath, source: str) -> list[str]:
    """What this file imports and its layer may not."""
    layer = layer_of(path)
    if layer not in MAY_IMPORT:
        return [f"{path}: '{layer}' is no known layer; add it to MAY_IMPORT and the documents"]
    found = []
    for line, module, name in imported(ast.parse(source)):
        if module.startswith("."):
            found.append(f"{path}:{line}: relative import; write it from 'fedoptima' on")
            continue
        target = imported_layer(module, name)
        reads_version = target == "version" and layer != "core"
        if target not in (None, layer) and target not in MAY_IMPORT[layer] and not reads_version:
            found.append(f"{path}:{line}: {layer} may not import {target}")
    return found


def modules_of(files: list[tuple[PurePosixPath, str]]) -> dict[str, str]:
    """The dotted name of every file, and its source."""
    return {
        ".".join(("fedoptima", *path.with_suffix("").parts)).removesuffix(".__init__"): text
        for path, text in files
    }


def import_cycle(modules: dict[str, str]) -> list[str]:
    """Modules that import each other in a circle, if any do; wherever the import stands."""
    graph = {
        name: {
            target
            for _, module, taken in imported(ast.parse(source))
            for target in (f"{module}.{taken}", module)
            if target in modules and target != name
        }
        for name, source in modules.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def package_files(under: str = ".") -> list[tuple[PurePosixPath, str]]:
    """Every source file of the package below ``under``, with its path inside the package."""
    return [
        (PurePosixPath(file.relative_to(PACKAGE).as_posix()), file.read_text(encoding="utf-8"))
        for file in sorted((PACKAGE / under).rglob("*.py"))
    ]


# --- the package ---


def test_every_import_follows_the_layers() -> None:
    violations = [v for path, text in package_files() for v in layering_violations(path, text)]
    assert not violations, "\n".join(violations)


def test_the_core_is_pure() -> None:
    files = package_files("core")
    assert files, "no core files found: this test looks in the wrong place"
    violations = [v for path, text in files for v in purity_violations(path, text)]
    assert not violations, "\n".join(violations)


def test_no_modules_import_each_other() -> None:
    assert not import_cycle(modules_of(package_files()))


def test_no_file_is_longer_than_contributing_allows() -> None:
    lengths = {
        file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8").count("\n")
        for folder in ("src", "tests", "tools", "benchmarks")
        for file in (ROOT / folder).rglob("*.py")
    }
    assert "tests/test_architecture.py" in lengths, "this test looks in the wrong place"
    too_long = {path: n for path, n in lengths.items() if n > MOST_LINES and "_pb2" not in path}
    assert not too_long


def test_only_the_command_line_and_displays_print() -> None:
    violations = [
        f"{path}:{node.lineno}: print() outside cli and display"
        for path, text in package_files()
        if layer_of(path) not in ("cli", "display")
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and called_name(node) == "print"
    ]
    assert not violations, "\n".join(violations)


# --- the test of the test ---

CORE_FILE = PurePosixPath("core/example.py")


@pytest.mark.parametrize("path", [path for path, _ in package_files("core")], ids=str)
def test_import_time_in_any_core_file_is_caught(path: PurePosixPath) -> None:
    source = (PACKAGE / path).read_text(encoding="utf-8")
    assert not purity_violations(path, source)
    assert "may not import time" in "\n".join(purity_violations(path, source + "\nimport time\n"))


@pytest.mark.parametrize(
    "first",
    [
        "from fedoptima.b import thing",
        "from fedoptima import b",
        "def f() -> None:\n    import fedoptima.b",
        "if TYPE_CHECKING:\n    from fedoptima.b import Thing",
    ],
)
def test_a_cycle_of_imports_is_caught_wherever_the_import_stands(first: str) -> None:
    modules = {"fedoptima.a": first, "fedoptima.b": "from fedoptima.c import x"}
    assert not import_cycle({**modules, "fedoptima.c": ""})
    assert import_cycle({**modules, "fedoptima.c": "from fedoptima.a import y"})


@pytest.mark.parametrize(
    "source",
    [
        "import random",
        "import os.path",
        "from datetime import datetime",
        "import torch",
        "from numpy import array",
        "def f() -> None:\n    import socket",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pathlib import Path",
        "print('x')",
        "text = open('x').read()",
        "order = hash('device')",
        "key = id(object())",
        "for name in {'a', 'b'}:\n    pass",
        "names = [name for name in set(found)]",
        "names = list({'a', 'b'})",
        "first = next(iter(frozenset(found)))",
        "text = ', '.join(set(found) - {'a'})",
        "names = [*set(found)]",
        "for name in a.keys() - b.keys():\n    pass",
        "def f(members: Set[str]) -> None:\n    for name in members:\n        pass",
        "class A:\n    def f(self) -> None:\n        self.on = set()\n        list(self.on)",
    ],
)
def test_impure_source_in_the_core_is_caught(source: str) -> None:
    assert purity_violations(CORE_FILE, source)


@pytest.mark.parametrize(
    "source",
    [
        "from heapq import heappush",
        "from collections.abc import Set",
        "from fedoptima.core.errors import ConfigError",
        "known = {'a', 'b'}\nfound = 'a' in known and len(known) > 1",
        "for name in sorted({'a', 'b'}):\n    pass",
        "for name in {'a': 1, 'b': 2}:\n    pass",
        "class A:\n    def open(self) -> None:\n        self.open()",
    ],
)
def test_pure_source_in_the_core_is_accepted(source: str) -> None:
    assert not purity_violations(CORE_FILE, source)
    assert not layering_violations(CORE_FILE, source)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("core/server.py", "from fedoptima.engine.server import ServerEngine"),
        ("core/server.py", "from fedoptima import __version__"),
        ("core/server.py", "def f() -> None:\n    import fedoptima.sim.driver"),
        ("methods/fl.py", "from fedoptima.config.run import RunConfig"),
        ("methods/fl.py", "from fedoptima import sim"),
        ("models/vgg5.py", "import fedoptima.data"),
        ("data/loader.py", "from fedoptima.preprocess import cuts"),
        ("preprocess/split.py", "from fedoptima.data.loader import Loader"),
        ("preprocess/split.py", "from fedoptima.engine import device"),
        ("engine/device.py", "from fedoptima.sim.state import SimState"),
        ("trace/writer.py", "from fedoptima.config import run"),
        ("config/run.py", "from fedoptima.trace import writer"),
        ("sim/driver.py", "from fedoptima import simulate"),
        ("sim/driver.py", "from fedoptima.runtime.wire.codec import encode"),
        ("experiments/setup.py", "from fedoptima.cli import main"),
        ("experiments/setup.py", "from fedoptima import simulate"),
        ("analysis/idle.py", "if TYPE_CHECKING:\n    from fedoptima.cli.commands.plan import plan"),
        ("engine/device.py", "from . import server"),
        ("core/server.py", "from .types import NodeId"),
        ("helpers/lists.py", "import math"),
    ],
)
def test_an_import_against_the_layers_is_caught(path: str, source: str) -> None:
    assert layering_violations(PurePosixPath(path), source)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("methods/fl.py", "from fedoptima.core.method import Method"),
        ("preprocess/cuts.py", "import fedoptima.models.registry"),
        ("engine/device.py", "from fedoptima.preprocess.cuts import cut"),
        ("sim/driver.py", "from fedoptima import __version__, trace"),
        ("experiments/setup.py", "from fedoptima.sim.driver import Simulation"),
        ("__init__.py", "from fedoptima.experiments.simulation import simulate"),
    ],
)
def test_an_import_along_the_layers_is_accepted(path: str, source: str) -> None:
    assert not layering_violations(PurePosixPath(path), source)
