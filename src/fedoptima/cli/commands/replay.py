"""``fedoptima replay``: was a run what its recipe and this code make of it?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import fedoptima.cli.options as options
from fedoptima.cli.errors import FAILED
from fedoptima.display.console import stdout
from fedoptima.display.progress import RecordCounter

if TYPE_CHECKING:
    from fedoptima.verification.replay import Replay, Weights

_DIGEST = 12  # characters; --json has all of them


def replay(
    run: Annotated[Path, options.RUN],
    weights: Annotated[
        bool, typer.Option("--weights", help="Also execute all jobs again and compare the weights.")
    ] = False,
    allow_modules: options.AllowModules = None,
    quiet: options.Quiet = False,
    as_json: options.AsJSON = False,
) -> None:
    """Feed a run's recorded events into fresh cores and compare what they do.

    The exit code is 1 if there is a difference. Works for simulated runs and for real ones.
    """
    from fedoptima.verification.replay import replay as replay_run

    with RecordCounter(quiet=quiet) as progress:
        allowed = allow_modules or ()
        outcome = replay_run(run, weights=weights, allow_modules=allowed, progress=progress)
    if as_json:
        typer.echo(outcome.to_json())
    else:
        stdout().print(_said(outcome), soft_wrap=True)
    if not outcome.identical:
        raise typer.Exit(FAILED)


def _said(outcome: Replay) -> str:
    if outcome.difference is not None:
        return f"different: {outcome.difference}"
    said = f"identical: {outcome.records} records of {len(outcome.nodes)} nodes"
    said = "\n".join([said, *(f"with a gap: {gap}" for gap in outcome.gaps)])
    return said if outcome.weights is None else _with_weights(said, outcome.weights)


def _with_weights(said: str, weights: Weights) -> str:
    if weights.identical:
        return f"{said}, weights {weights.executed[:_DIGEST]}"
    if weights.problem:
        return f"{said}\nbut its weights cannot be computed again: {weights.problem}"
    recorded, executed = weights.recorded[:_DIGEST], weights.executed[:_DIGEST]
    return f"{said}\ndifferent: weights {recorded} recorded, {executed} from the recorded jobs"
