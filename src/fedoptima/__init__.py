"""Train one neural network across uneven devices and a server, with neither side waiting."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from fedoptima.version import __version__

if TYPE_CHECKING:
    from fedoptima.comparison.result import Comparison
    from fedoptima.comparison.runner import compare, resume_comparison
    from fedoptima.comparison.sweep import sweep
    from fedoptima.config.load import load_recipe
    from fedoptima.config.schema import Recipe
    from fedoptima.core.errors import ConfigError, FedOptimaError
    from fedoptima.experiments.join import join
    from fedoptima.experiments.result import Result
    from fedoptima.experiments.serve import serve
    from fedoptima.experiments.simulated_run import Interrupted
    from fedoptima.experiments.simulation import resume, simulate
    from fedoptima.prediction.planning import plan
    from fedoptima.reporting.report import report
    from fedoptima.tasks.task import Task
    from fedoptima.verification.replay import replay

# Where each public name is defined. No subpackage may have one of these names: importing it would
# hide the function (tests/test_public_names.py).
_DEFINED_IN = {
    "Comparison": "comparison.result",
    "ConfigError": "core.errors",
    "FedOptimaError": "core.errors",
    "Interrupted": "experiments.simulated_run",
    "Recipe": "config.schema",
    "Result": "experiments.result",
    "Task": "tasks.task",
    "compare": "comparison.runner",
    "join": "experiments.join",
    "load_recipe": "config.load",
    "plan": "prediction.planning",
    "replay": "verification.replay",
    "report": "reporting.report",
    "resume": "experiments.simulation",
    "resume_comparison": "comparison.runner",
    "serve": "experiments.serve",
    "simulate": "experiments.simulation",
    "sweep": "comparison.sweep",
}

__all__ = [
    "Comparison",
    "ConfigError",
    "FedOptimaError",
    "Interrupted",
    "Recipe",
    "Result",
    "Task",
    "__version__",
    "compare",
    "join",
    "load_recipe",
    "plan",
    "replay",
    "report",
    "resume",
    "resume_comparison",
    "serve",
    "simulate",
    "sweep",
]


def __getattr__(name: str) -> object:
    """`import fedoptima` is quick: torch is loaded when something is first used."""
    if name in _DEFINED_IN:
        return getattr(import_module(f"fedoptima.{_DEFINED_IN[name]}"), name)
    raise AttributeError(f"module 'fedoptima' has no attribute {name!r}")
