"""The public names: one list, and each stays what it is whatever else has been imported."""

from __future__ import annotations

import inspect
import json
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedoptima

NAMES = {
    "Comparison": "class",
    "ConfigError": "class",
    "FedOptimaError": "class",
    "Interrupted": "class",
    "Recipe": "class",
    "Result": "class",
    "Task": "class",
    "compare": "function",
    "join": "function",
    "load_recipe": "function",
    "plan": "function",
    "replay": "function",
    "report": "function",
    "resume": "function",
    "resume_comparison": "function",
    "serve": "function",
    "simulate": "function",
    "sweep": "function",
}

# Every submodule first: importing one sets an attribute of its package.
KINDS_AFTER_ALL_IMPORTS = """
import inspect, json, pkgutil
from importlib import import_module

import fedoptima

for module in pkgutil.walk_packages(fedoptima.__path__, "fedoptima."):
    # Kernels need Triton, which comes with torch only where there is a GPU.
    if not module.name.endswith(("__main__", "pair_attention")):
        import_module(module.name)

def kind(found):
    return "class" if inspect.isclass(found) else type(found).__name__

public = {name: getattr(fedoptima, name) for name in fedoptima.__all__ if name != "__version__"}
print(json.dumps({name: kind(found) for name, found in public.items()}))
"""


def test_the_public_names_are_these() -> None:
    assert sorted(fedoptima.__all__) == sorted([*NAMES, "__version__"])


def test_nothing_in_the_package_has_a_public_name() -> None:
    children = {module.name for module in pkgutil.iter_modules(fedoptima.__path__)}
    assert not children & set(NAMES)


def test_every_public_name_is_what_it_is_after_all_submodules_were_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", KINDS_AFTER_ALL_IMPORTS],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_says_what_it_is_for(name: str) -> None:
    assert (getattr(fedoptima, name).__doc__ or "").strip()


FUNCTIONS = [name for name, kind in NAMES.items() if kind == "function"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_docstring_of_a_function_is_its_reference(name: str) -> None:
    """The API reference is made from it: every argument, what comes back, what is raised."""
    function = getattr(fedoptima, name)
    text = inspect.getdoc(function) or ""
    sections = re.split(r"^(Args|Returns|Raises|Example):$", text, flags=re.M)
    parts = dict(zip(sections[1::2], sections[2::2], strict=True))
    assert list(parts) == ["Args", "Returns", "Raises", "Example"]
    described = re.findall(r"^    (\w+): ", parts["Args"], flags=re.M)
    assert described == list(inspect.signature(function).parameters)
    assert "ConfigError: " in parts["Raises"]
    assert f"fedoptima.{name}(" in parts["Example"]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'simulat'"):
        _ = fedoptima.simulat  # type: ignore[attr-defined]


def test_a_plan_and_a_report_take_paths_as_text(tmp_path: Path) -> None:
    recipe = str(Path(__file__).parents[1] / "recipes" / "demo_digits.toml")
    assert fedoptima.plan(recipe).plan.split >= 1
    run = tmp_path / "run"
    fedoptima.simulate(recipe, epochs=1, dry=True, out=str(run))
    assert fedoptima.replay(str(run)).identical
    made = fedoptima.report(str(run), out=str(tmp_path / "report.html"), advice=False)
    assert made.path.is_file()
