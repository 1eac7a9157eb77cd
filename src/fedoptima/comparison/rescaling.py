"""What a method with a barrier would have done on another fleet, without training it again.

Behind a barrier a round is the same work whatever the devices' speeds and links: who is in it, the
batches, the merge. So as long as nobody leaves, accuracy over epochs does not depend on the fleet,
and a dry run of another fleet has the times. It is exact if both runs have the same split and
PiPar the same number of parts (batch normalisation sees parts): fix them with `split.at` and
`pipar.micro_batches` where fleets would choose different ones. CSE-FSL has a barrier too, but its
devices do not wait for the server, whose one side learns in the order in which batches arrive.

    trained = compare(recipe, methods=["fl"], seeds=3)
    dry = compare(elsewhere, methods=["fl"], seeds=3, dry=True)
    runs = [rescaled(one, other) for one, other in zip(trained.runs, dry.runs)]
"""

from __future__ import annotations

from dataclasses import replace

from fedoptima.comparison.rows import Run
from fedoptima.core.errors import ConfigError
from fedoptima.methods.registry import find_method
from fedoptima.named_code import ANY_CODE


def same_on_every_fleet(method: str) -> bool:
    """Does it learn the same from as many epochs, if nobody leaves and the split is the same?"""
    made = find_method(method, ANY_CODE)(1)
    return made.aggregation().closes_round and made.program.kind != "auxiliary"


def rescaled(trained: Run, dry: Run) -> Run:
    """The dry run's times and the trained run's accuracies; both have the same epochs."""
    if dry.method != trained.method or dry.seed != trained.seed:
        raise ConfigError(
            f"{trained.label}, seed {trained.seed}, cannot have the times of {dry.label}, seed "
            f"{dry.seed}"
        )
    if not same_on_every_fleet(trained.method):
        raise ConfigError(f"what {trained.method} learns depends on the fleet; train it there")
    if trained.figures is None or dry.figures is None:
        raise ConfigError(f"{trained.label}, seed {trained.seed}: a run of it has failed")
    if [at.epochs for at in trained.curve] != [at.epochs for at in dry.curve]:
        raise ConfigError(
            f"{trained.label}, seed {trained.seed}: the runs were not evaluated after the same "
            f"epochs (they ended after {trained.figures.epochs:g} and {dry.figures.epochs:g}); "
            "rescaling needs the same recipe and budget, and that no device leaves"
        )
    learnt = ("accuracy", "best_accuracy", "test_accuracy", "loss", "best_loss")
    figures = replace(dry.figures, **{name: getattr(trained.figures, name) for name in learnt})
    curve = (
        replace(learned, seconds=time.seconds)
        for time, learned in zip(dry.curve, trained.curve, strict=True)
    )
    return replace(dry, figures=figures, curve=tuple(curve), weights_digest=trained.weights_digest)
