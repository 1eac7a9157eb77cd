"""The folder of a comparison or a sweep: it holds an ordinary run folder for each run.

METHOD-seedN/         a run; in a sweep METHOD-SETTINGS-seedN
comparison.json       what is compared; at the end with all figures
comparison.md         the table
curves.csv            one line for each evaluation of each run

A sweep's files are sweep.json and sweep.md, and sweep.csv has one line for each run, with its
settings and figures.
"""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedoptima.comparison.result import Comparison, as_records
from fedoptima.comparison.spec import About, recipe_of
from fedoptima.config.difference import different_keys
from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.core.errors import ConfigError
from fedoptima.experiments.run_directory import RunDirectory, make_folder
from fedoptima.trace.plain_files import read_plain, refuse_links
from fedoptima.trace.run_folder import RunFiles, write_whole


def about_file(directory: str | Path) -> Path | None:
    """What describes the comparison or sweep in this folder, if there is one."""
    found = (Path(directory) / f"{kind}.json" for kind in ("comparison", "sweep"))
    return next((path for path in found if path.is_file()), None)


def read_about(directory: str | Path) -> About:
    path = about_file(directory)
    if path is None:
        raise ConfigError(
            f"{directory}: no comparison found here (comparison.json or sweep.json is missing)"
        )
    try:
        return About.from_json(json.loads(read_plain(path))["about"], str(path))
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{path}: damaged ({error}); start a new {path.stem}") from error


def write_result(comparison: Comparison, folder: Path) -> None:
    kind, vary = comparison.about.kind, comparison.about.vary
    records = list(as_records(comparison))
    names = len(vary) + 2  # method, settings, seed
    measured = ("seconds", "epochs", "accuracy", "loss")
    curves: list[list[object]] = [[*records[0][:names], *measured]]
    for run, record in zip(comparison.runs, records[1:], strict=True):
        curves += [[*record[:names], *(getattr(at, m) for m in measured)] for at in run.curve]
    write_whole(folder / "curves.csv", _as_csv(curves))
    if vary:
        write_whole(folder / f"{kind}.csv", _as_csv(records))
    write_whole(folder / f"{kind}.md", comparison.to_markdown())
    write_whole(folder / f"{kind}.json", comparison.to_json())


def _as_csv(records: Iterable[Sequence[object]]) -> str:
    file = io.StringIO(newline="")
    csv.writer(file).writerows(records)
    return file.getvalue()


@contextmanager
def open_folder(about: About, out: str | Path | None) -> Iterator[Path]:
    if out is None:
        with tempfile.TemporaryDirectory(prefix="fedoptima-") as temporary:
            yield Path(temporary)
        return
    path = Path(out)
    extended = about.vary and (path / f"{about.kind}.json").is_file()
    if not extended and path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(
            f"{path}: exists already; choose another --out, or resume it with --resume {path}"
        )
    make_folder(path)
    yield path


def check_earlier(about: About, folder: Path) -> None:
    """Runs of an earlier sweep are kept only if they are what this one would do."""
    refuse_links(folder)
    for case in about.cases:
        for seed in about.seeds:
            path = folder / case.folder(seed)
            if not RunFiles(path).begun:
                continue
            _, earlier, dry = RunDirectory.open(path)
            wanted = recipe_of(about, case, seed)
            if dry != about.dry or earlier != validate(Recipe, _plain(wanted), about.recipe.name):
                key = "--dry" if dry != about.dry else different_keys(earlier, wanted)[0]
                raise ConfigError(
                    f"{path}: was run with another recipe ({key} differs); choose another --out"
                )


def _plain(recipe: Recipe) -> dict[str, object]:
    return recipe.model_dump(mode="json")
