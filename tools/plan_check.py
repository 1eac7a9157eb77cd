"""Does a run do what `fedoptima plan` said: useful samples and bytes each second, within 15 %?

    python -m tools.plan_check recipes/paper/[ab]_{image,text}.toml --dry
    python -m tools.plan_check recipes/paper/[ab]_{image,text}.toml --device cuda --data DIR
    python -m tools.plan_check recipes/paper/a_image.toml --network --device cuda --data DIR

A plan comes from a dry run that ends as soon as every device has done a few rounds, with all
devices there from the start. It is compared with a whole run of --epochs: simulated with training
(--dry: the timing alone, which is the same), or with --network by a server and a process for each
device on this machine, over TLS, as slow as the fleet says (`fedoptima run --paced`). That server
is not slowed, so the plan gets one of --server-gflops; and a slowed link may catch up on a moment
in which it had nothing to send, which matters where a batch takes it only milliseconds. Writes
results/plan_check/<how>.json after every run, and exits with 1 if something is off by more.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedoptima.config.load import load_recipe, of_method
from fedoptima.config.schema import Recipe
from fedoptima.experiments.given import Given
from fedoptima.experiments.setup import prepare
from fedoptima.experiments.simulated_run import run_experiment
from fedoptima.methods.fedoptima_plus import NAME as PLUS
from fedoptima.prediction.planning import predict_recipe
from tools.records import ROOT, Record, origin, save

MOST = 0.15
FIGURES = ("useful samples/s", "bytes/s up", "bytes/s down")


def predicted(recipe: Recipe) -> tuple[Recipe, list[float]]:
    """Also the recipe with what FedOptima+ chose, so that it is not planned twice."""
    experiment, found = predict_recipe(recipe, Given(), lambda *_: None)
    figures = [found.useful_samples_per_second, found.up_per_second, found.down_per_second]
    return experiment.recipe, figures


def simulated(recipe: Recipe, *, dry: bool) -> list[float]:
    result = run_experiment(prepare(recipe, dry=dry), dry=dry)
    totals = (result.useful_samples, result.bytes_up, result.bytes_down)
    return [total / result.seconds for total in totals]


def over_the_network(path: Path, method: str, changes: Sequence[str]) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "fedoptima", "run", str(path), "--paced", "--quiet"]
        command += ["--method", method, "--out", str(out)]
        command += [word for change in changes for word in ("--set", change)]
        subprocess.run(command, check=True)
        summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    totals = (summary["work"]["useful"], summary["bytes_up"], summary["bytes_down"])
    return [total / summary["seconds"] for total in totals]


def compared(plan: Sequence[float], run: Sequence[float]) -> Record:
    """The figures of both, and how much more or less the run did than the plan said."""
    figures = {
        name: {"plan": float(f"{a:.4g}"), "run": float(f"{b:.4g}"), "off": round(b / a - 1, 4)}
        for name, a, b in zip(FIGURES, plan, run, strict=True)
    }
    total = (sum(run[1:]) / sum(plan[1:])) - 1
    worst = max(abs(figures[FIGURES[0]]["off"]), abs(total))
    return {**figures, "bytes off": round(total, 4), "within": worst <= MOST}


def main(arguments: Sequence[str] | None = None) -> int:
    said = sys.argv[1:] if arguments is None else list(arguments)
    given = _parser().parse_args(said)
    how = "network" if given.network else "dry" if given.dry else "trained"
    record = origin("tools.plan_check", said, given.device, given.commit)
    record |= {"epochs": given.epochs, "runs": []}
    changes = [f"stop={{epochs={given.epochs:g}}}", f"device={json.dumps(given.device)}"]
    changes += [f"data.directory={json.dumps(given.data)}"] if given.data else []
    if given.network:
        changes.append(f"fleet.server.gflops={given.server_gflops}")
    changes += given.set
    for path in given.recipes:
        for method in given.methods:
            recipe, plan = predicted(recipe_of(path, method, changes))
            if given.network:
                run = over_the_network(path, method, changes)
            else:
                run = simulated(recipe, dry=given.dry)
            row = {"recipe": path.stem, "method": method, **compared(plan, run)}
            record["runs"].append(row)
            useful = row[FIGURES[0]]
            news = f"{path.stem}, {method}: useful samples/s {useful['plan']:g} planned, "
            news += f"{useful['run']:g} in the run ({useful['off']:+.1%}); bytes "
            save(record, given.out / f"{how}.json", news + f"{row['bytes off']:+.1%}")
    return 0 if all(row["within"] for row in record["runs"]) else 1


def recipe_of(path: Path, method: str, changes: Sequence[str]) -> Recipe:
    """With what the recipe has for this method."""
    read = load_recipe(path, changes)
    if read.method.name != method:
        read = read.model_copy(update={"method": type(read.method)(name=method)})
    return of_method(read)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.plan_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipes", nargs="+", type=Path)
    parser.add_argument("--methods", nargs="+", default=["fedoptima", PLUS])
    parser.add_argument("--epochs", type=float, default=3.0)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--dry", action="store_true", help="the timing alone, without training")
    how.add_argument("--network", action="store_true", help="real processes, in real time")
    parser.add_argument("--server-gflops", type=float, default=100.0, help="of --network's server")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data", help="folder of the data sets")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "plan_check")
    parser.add_argument("--commit", help="where git cannot tell")
    return parser


if __name__ == "__main__":
    sys.exit(main())
