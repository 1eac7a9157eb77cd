"""Options that several commands have, each written once; and extras that their work may need."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

import fedoptima.cli.completion as completion
from fedoptima.core.errors import ConfigError

# ---- a recipe, and what is changed in it ---------------------------------------------------------

RECIPE = typer.Argument(
    metavar="RECIPE", help="A recipe, as a TOML file.", autocompletion=completion.recipes
)
RecipeFile = Annotated[Path | None, RECIPE]
Method = Annotated[
    str | None,
    typer.Option(
        "--method",
        metavar="NAME",
        help="Train with another method.",
        autocompletion=completion.methods,
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Replace a value of the recipe, e.g. stop.epochs=5. Repeatable.",
    ),
]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="Use another seed.", min=0)]
ComputeDevice = Annotated[
    str | None,
    typer.Option("--device", metavar="NAME", help="Where to compute: cpu, cuda, cuda:1."),
]
Workers = Annotated[
    str | None,
    typer.Option(
        "--workers",
        metavar="N",
        help="Processes for the tensor work of a run, or auto: one per core where it pays.  "
        "[default: the recipe's]",
    ),
]

# ---- a run -------------------------------------------------------------------------------------

Dry = Annotated[
    bool, typer.Option("--dry", help="Only the timing, without tensors: for any fleet size.")
]
RUN = typer.Argument(metavar="RUN", help="The run's folder.", autocompletion=completion.runs)
ResumedRun = Annotated[
    Path | None,
    typer.Option(
        "--resume",
        metavar="RUN",
        help="Resume the run in this folder.",
        autocompletion=completion.runs,
    ),
]
Extend = Annotated[
    list[str] | None,
    typer.Option(
        "--extend",
        metavar="KEY=VALUE",
        help="With --resume: run longer than the recipe says, even after the end, e.g. "
        "stop.epochs=200. Only keys of stop. Repeatable.",
    ),
]
AllowModules = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-module",
        metavar="NAME",
        help="Load code of this package or module where the run's files or its server name it. "
        "Repeatable.",
    ),
]
CheckpointEvery = Annotated[
    float, typer.Option(metavar="SECONDS", help="Wall time between checkpoints.", min=0)
]

# ---- certificates, or none and said so -----------------------------------------------------------

Authority = Annotated[
    Path | None, typer.Option("--tls-ca", metavar="FILE", help="The CA's certificate, ca.pem.")
]
Certificate = Annotated[
    Path | None, typer.Option("--tls-cert", metavar="FILE", help="This machine's certificate.")
]
Key = Annotated[
    Path | None, typer.Option("--tls-key", metavar="FILE", help="The key of the certificate.")
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Use no certificates, even over a network.")
]

# ---- what is shown -----------------------------------------------------------------------------

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show only the result.")]
AsJSON = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
_PORT: dict[str, Any] = {"metavar": "PORT", "min": 0, "max": 65535}
_PAGE = "Show the run on a page at this port of this machine; 0: any free one."
PagePort = Annotated[int | None, typer.Option("--dashboard", help=_PAGE, **_PORT)]
_METRICS = "Serve metrics for Prometheus, on this machine only; 0: any free port."
MetricsPort = Annotated[int | None, typer.Option("--metrics-port", help=_METRICS, **_PORT)]
TensorBoardFolder = Annotated[
    Path | None,
    typer.Option(
        "--tensorboard",
        metavar="DIR",
        help="Write scalars for TensorBoard, in a folder of DIR named after the run's.",
    ),
]
MLflowURI = Annotated[
    str | None, typer.Option("--mlflow", metavar="URI", help="Log to this MLflow tracking server.")
]

# ---- what the base installation lacks ------------------------------------------------------------


@contextmanager
def needing_extra(extra: str, what: str, *packages: str) -> Iterator[None]:
    """Imports inside fail with an install hint."""
    try:
        yield
    except ImportError as error:
        # torch's writer raises an ImportError of its own, without the name of a module.
        missing = (error.name or "tensorboard").partition(".")[0]
        if missing not in packages:
            raise
        package = missing.replace("_", "-")
        raise ConfigError(f"{what} needs {package}: {install_command(extra)}") from error


def install_command(extra: str) -> str:
    return f"pip install 'fedoptima[{extra}]'"


def deploy_extra() -> AbstractContextManager[None]:
    packages = ("grpc", "google", "cryptography")
    return needing_extra("deploy", "running over the network", *packages)


def track_extra(option: str) -> AbstractContextManager[None]:
    return needing_extra("track", option, "prometheus_client", "tensorboard", "mlflow")


def in_brief(command: Callable[..., object]) -> str:
    """For the list of commands, which cuts off what it takes from a docstring by itself."""
    return " ".join(inspect.cleandoc(command.__doc__ or "").split("\n\n")[0].split())
