"""FedOptima+: the form of FedOptima that suits a fleet and a model, chosen by short dry runs.

The planner starts from the paper's form and changes one thing at a time: the cut, the codec of the
activations, the auxiliary network, how many batches devices train on; with the cut also the others.
It keeps the change that brings most fresh samples through the whole network each second, as long as
one brings clearly more, and devices train on a stated least share of their batches. What the search
gave up on the way and need not is taken back: devices train on as many batches as cost nothing. A
server that is still idle then reuses activations (docs/decisions/0039). Where the recipe asks for
cuts of single devices, quick ones take so many blocks that the server is just busy. What the recipe
gives is kept as it is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TypeVar, cast, get_args

from fedoptima.analysis.idle_time import UsageAccount
from fedoptima.analysis.pacing import PaceAccount
from fedoptima.config.schema import Recipe
from fedoptima.config.split import SplitConfig
from fedoptima.core.codecs import Codec
from fedoptima.core.errors import ConfigError
from fedoptima.core.stopping import StopRule
from fedoptima.core.types import SERVER
from fedoptima.experiments.assembly import Simulated
from fedoptima.experiments.method_setup import build_method
from fedoptima.methods.fedoptima_plus import LEAST_TRAINING, NAME, PLANNED
from fedoptima.sim.fleet import Fleet

R = TypeVar("R", bound=Simulated)
Build = Callable[[Recipe], Simulated]  # a run that is not started, for a dry simulation

AUXILIARIES = (
    "default",
    "light",
)  # the strongest first; a bare classifier is cheap, and costs accuracy
EVENTS = 20_000  # of one dry run, at most
_SMALLEST: Codec = "int8"
_GAIN = 1.02  # what a change must bring
_EQUAL = 1.005  # what is as good
_BUSY = 0.95  # a server below this reuses activations
_MOST_USES = 4
_MOST_EVERY = 8
_MOST_LIMITS = 32  # of large fleets, in which hardly two devices are alike
_KEPT = ("codec", "auxiliary", "train_every")
_HOURS = 1e6  # a dry run ends before that


@dataclass(frozen=True, slots=True)
class Form:
    """What can be chosen."""

    split: int  # where devices have cuts of their own: the first
    codec: Codec = "float32"
    auxiliary: str | int = "default"
    train_every: int = 1
    cuts: tuple[tuple[int, int], ...] = ()  # of single devices, with how many have each
    batch_seconds: float | None = field(default=None, compare=False)  # with which they have these

    def __str__(self) -> str:
        every = f", training every {self.train_every}" if self.train_every > 1 else ""
        where = ", ".join(f"{cut} for {count}" for cut, count in self.cuts) or self.split
        return f"split {where}, {self.codec}, auxiliary {self.auxiliary}{every}"


@dataclass(frozen=True, slots=True)
class Tried:
    form: Form
    useful: float  # fresh samples each second through the whole network
    trained_share: float  # of the devices' batches
    server_busy: float
    why: str = ""  # it was not chosen


@dataclass(frozen=True, slots=True)
class PlannedForm:
    """The choice, and what it was compared with."""

    recipe: Recipe  # with every choice in it
    chosen: Tried
    tried: tuple[Tried, ...]
    reuse: dict[str, object] | bool


def is_planned(recipe: Recipe) -> bool:
    """Is nothing left to choose?"""
    given, split = recipe.method.options, recipe.split
    return recipe.method.name != NAME or (
        (split.at is not None or split.batch_seconds is not None)
        and all(given.get(key) is not None for key in PLANNED)
    )


def with_form(recipe: Recipe, build: Build) -> Recipe:
    """The recipe with what the planner chose; as it is where there is nothing to choose."""
    return recipe if is_planned(recipe) else plan_form(recipe, build).recipe


def plan_form(recipe: Recipe, build: Build) -> PlannedForm:
    if recipe.fleet is None:
        raise ConfigError(
            f"method.name = {NAME!r}: the planner needs to know the devices; give the recipe a "
            f"fleet, or choose yourself: split.at and method.{', '.join(PLANNED)}"
        )
    build_method(recipe, 1)  # its options are checked before they are used
    planner = _Planner(recipe, build)
    best = planner.relieved(planner.climb())
    reuse = recipe.method.options.get("reuse")
    if reuse is None:
        local_loss = best.form.auxiliary != "none"
        reuse = _reuse(best.server_busy) if local_loss else False
    chosen = planner.recipe_of(best.form, reuse)
    tried = tuple(planner.seen.values())
    return PlannedForm(chosen, best, tried, cast("dict[str, object] | bool", reuse))


def _reuse(busy: float) -> dict[str, object] | bool:
    """As often as fills the server's time, and no more than was found to help."""
    if not 0.0 < busy < _BUSY:
        return False
    return {"batches": 64, "uses": min(_MOST_USES, math.ceil(1.0 / busy) - 1)}


class _Planner:
    def __init__(self, recipe: Recipe, build: Build) -> None:
        self._recipe, self._build = recipe, build
        self.seen: dict[Form, Tried] = {}
        share = recipe.method.options.get("least_training", LEAST_TRAINING)
        self._most_every = min(_MOST_EVERY, int(1.0 / float(cast("float", share))))
        self._blocks = 1

    def climb(self) -> Tried:
        best = self._try(self._first())
        while True:
            found = [self._try(form) for form in self._changed(best.form)]
            better = [one for one in found if one.useful > _GAIN * best.useful]
            if not better:
                return self._relaxed(best)
            most = max(one.useful for one in better)
            # Of those that are as good, the one that leaves most to the server: its one model takes
            # every step, devices' blocks are merged now and then.
            best = min(
                (one for one in better if one.useful * _GAIN >= most),
                key=lambda one: (one.form.split, one.form.train_every),
            )

    def _relaxed(self, best: Tried) -> Tried:
        """As good, with more training on the devices and the auxiliary network that learns best."""
        given, found = self._recipe.method.options, best
        if given.get("train_every") is None:
            found = self._as_good(
                best,
                (replace(best.form, train_every=n) for n in range(1, best.form.train_every)),
            )
        if given.get("auxiliary") is None and found.form.auxiliary != AUXILIARIES[0]:
            found = self._as_good(best, [replace(found.form, auxiliary=AUXILIARIES[0])], found)
        return found

    def _as_good(self, best: Tried, forms: Iterable[Form], found: Tried | None = None) -> Tried:
        tried = (self._try(form) for form in forms)
        return next((one for one in tried if one.useful * _EQUAL >= best.useful), found or best)

    def relieved(self, best: Tried) -> Tried:
        """With cuts of single devices, if the recipe asks for them. Training is not given up for
        them: the rest of the form stays as it is."""
        if not self._recipe.split.per_device:
            return best
        found: list[Tried] = []
        for codec in self._codecs(best.form):
            found += self._with_cuts(replace(best.form, codec=codec, batch_seconds=0.0))
        most = max(one.useful for one in found)
        equal = (one for one in found if one.useful * _GAIN >= most)
        return min(equal, key=lambda one: one.form.batch_seconds or 0.0)

    def _codecs(self, form: Form) -> tuple[Codec, ...]:
        """Those that count where something else changes."""
        free = self._recipe.method.options.get("codec") is None
        return (form.codec, _SMALLEST) if free else (form.codec,)

    def _limits(self, form: Form) -> list[float]:
        """Times of a batch with which devices have other cuts: 0, with which each has its quickest,
        and between any two that a device takes with some cut."""
        if self._recipe.split.batch_seconds is not None:
            return [self._recipe.split.batch_seconds]
        run = self._build(self._plain(form, None))
        rows, devices = run.plan().table, run.fleet.devices.values()
        times = {
            max(row.device_flops / d.flops_per_second, row.activation_bytes / d.up)
            for row in rows
            for d in devices
        }
        between = sorted({float(f"{math.sqrt(a * b):.3g}") for a, b in pairwise(sorted(times))})
        return [0.0, *between[:: 1 + len(between) // _MOST_LIMITS]]

    def _with_cuts(self, form: Form) -> Iterator[Tried]:
        """The longer devices may take, the less the server has to do: where is it just busy? And
        from there back, as long as it is as good: what devices hold is merged now and then."""
        limits, best = self._limits(form), (0.0, 0)
        low, high = 0, len(limits) - 1
        while low <= high:
            middle = (low + high) // 2
            one = self._with_limit(form, limits[middle])
            yield one
            best = max(best, (one.useful, middle))
            busy = one.server_busy >= _BUSY
            low, high = (middle + 1, high) if busy else (low, middle - 1)
        for limit in reversed(limits[: best[1]]):
            one = self._with_limit(form, limit)
            if one.useful * _GAIN < best[0]:
                break
            yield one

    def _with_limit(self, form: Form, batch_seconds: float) -> Tried:
        form = replace(form, batch_seconds=batch_seconds)
        run = self._build(self._plain(form, None))
        cuts = tuple(sorted(Counter(run.cuts(run.plan()).values()).items()))
        return self._try(replace(form, split=cuts[0][0], cuts=cuts))

    def recipe_of(self, form: Form, reuse: object) -> Recipe:
        method = self._recipe.method
        options = {**method.options, **_options(form), "reuse": reuse}
        return self._recipe.model_copy(
            update={
                "method": type(method)(name=method.name, **options),
                "split": self._split(form, form.split),
            }
        )

    def _split(self, form: Form, at: int | None) -> SplitConfig:
        own: dict[str, object] = {"at": at, "per_device": False, "batch_seconds": None}
        if form.batch_seconds is not None:  # the time of a batch is all that a device computes
            own = {"per_device": True, "batch_seconds": form.batch_seconds, "objective": "measured"}
        return self._recipe.split.model_copy(update=own)

    def _plain(self, form: Form, split: int | None) -> Recipe:
        """A recipe in which nothing is left to choose, except the cut by the paper's rule."""
        method = self._recipe.method
        known = {k: v for k, v in method.options.items() if k not in ("reuse", "least_training")}
        return self._recipe.model_copy(
            update={
                "method": type(method)(name="fedoptima", **{**known, **_options(form)}),
                "split": self._split(form, split),
                "stop": StopRule(hours=_HOURS),
            }
        )

    def _first(self) -> Form:
        """The paper's, with what the recipe gives."""
        given = self._recipe.method.options
        form = Form(
            split=self._recipe.split.at if isinstance(self._recipe.split.at, int) else 1,
            **{key: given[key] for key in _KEPT if given.get(key) is not None},  # type: ignore[arg-type]
        )
        if isinstance(self._recipe.split.at, str):
            raise ConfigError(
                f"split.at = {self._recipe.split.at!r}: {NAME} cuts between blocks; give a number, "
                "or leave it out"
            )
        plan = self._build(self._plain(form, self._recipe.split.at)).plan()
        self._blocks = len(plan.blocks)
        return replace(form, split=plan.split)

    def _changed(self, form: Form) -> Iterator[Form]:
        """All that differ in one thing that the recipe leaves open. The cut changes with others: a
        codec shows what it is worth only where much is sent, and a late cut what it is worth only
        where devices do little else."""
        given = self._recipe.method.options
        own = self._recipe.split.at is None
        free = given.get("codec") is None
        for split in range(1, self._blocks) if own else (form.split,):
            for codec in self._codecs(form):
                cut = replace(form, split=split, codec=codec)
                yield cut
                yield self._lean(cut)
        for codec in get_args(Codec) if free else ():
            yield replace(form, codec=codec)
        if given.get("auxiliary") is None:
            for auxiliary in AUXILIARIES:
                yield replace(form, auxiliary=auxiliary)
        if given.get("train_every") is None:
            for every in range(1, self._most_every + 1):
                yield replace(form, train_every=every)

    def _lean(self, form: Form) -> Form:
        """With as little work for devices as the recipe allows."""
        given = self._recipe.method.options
        if given.get("auxiliary") is None:
            form = replace(form, auxiliary=AUXILIARIES[-1])
        if given.get("train_every") is None:
            form = replace(form, train_every=self._most_every)
        return form

    def _try(self, form: Form) -> Tried:
        if form not in self.seen:
            self.seen[form] = self._measured(form)
        return self.seen[form]

    def _measured(self, form: Form) -> Tried:
        try:
            run = steady(self._build(self._plain(form, form.split)))
            pace, usage = PaceAccount(run.batches), UsageAccount()
            simulation = run.assemble([pace.observe, usage.observe], dry=True).simulation
            simulation.run(pause=lambda: pace.settled or simulation.events >= EVENTS)
        except ConfigError as error:  # an auxiliary network that cannot follow this cut, say
            return Tried(form, 0.0, 0.0, 0.0, str(error))
        paces = pace.paces()
        useful = sum(paces[d].batches_per_second * batch for d, batch in run.batches.items())
        trained = sum(one.samples_per_second for one in paces.values())
        every = sum(one.processed_per_second for one in paces.values())
        busy = usage.usage()[SERVER].utilisation
        return Tried(form, useful, trained / every if every else 0.0, busy)


def _options(form: Form) -> dict[str, object]:
    return {"codec": form.codec, "auxiliary": form.auxiliary, "train_every": form.train_every}


def steady(run: R) -> R:
    """All devices are present from start to end, and nothing changes."""
    fleet = run.fleet
    present = {name: replace(spec, joins_at=0.0) for name, spec in fleet.devices.items()}
    return cast("R", replace(cast("Any", run), fleet=Fleet(fleet.server, present)))
