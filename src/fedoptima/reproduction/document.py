"""What the records show, as one Markdown document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean, stdev

from fedoptima.analysis.formatting import brief, counted
from fedoptima.comparison.cases import Case
from fedoptima.paper_numbers import OTHERS, Measure, PaperNumber
from fedoptima.reproduction.catalogue import Catalogue, Figure
from fedoptima.reproduction.ceilings import Ceiling
from fedoptima.reproduction.figures import PICTURES, title_of
from fedoptima.reproduction.measures import MEASURES
from fedoptima.reproduction.ours import FEDOPTIMA, WORKLOADS, Results, target_of
from fedoptima.reproduction.planned import Planned, distinct
from fedoptima.reproduction.records import Record, Records, counted_origins
from fedoptima.reproduction.retiming import Retimed
from fedoptima.reproduction.verdicts import POINTS, SHARE, Reason, Row, Verdict, rows

DOCUMENT = "reproduction.md"
_TEACHER = "splitfed"  # does what PiPar does, but for batch normalisation over parts of a batch
_WHAT = {
    Measure.ACCURACY: "accuracy",
    Measure.ACCURACY_GAIN: "accuracy gained",
    Measure.HOURS: "time to the paper's accuracy",
    Measure.TIME_RATIO: "time to a similar accuracy",
    Measure.THROUGHPUT_RATIO: "throughput",
    Measure.SERVER_IDLE_REDUCTION: "idle server, less by up to",
    Measure.DEVICE_IDLE_REDUCTION: "idle devices, less by up to",
    Measure.RETENTION: "R(0.5)",
    Measure.COMMUNICATION_CHANGE: "communication",
    Measure.DEVICES_IN_8_GB: "devices that 8 GB are enough for",
    Measure.STARTUP_SECONDS: "start-up",
}
_COUNTED = {  # one, and others
    Verdict.AGREES: ("agrees", "agree"),
    Verdict.BETTER: ("is better", "are better"),
    Verdict.DIFFERS: ("differs", "differ"),
    Verdict.OPEN: ("is open", "are open"),
    Verdict.NOT_RUN: ("is not run", "are not run"),
}
_INTRODUCTION = (
    "Every number that the paper states, next to ours. How to read it:",
    "",
    "- Our numbers are means over seeds, with the standard deviation; without one, there is one"
    " seed, or no spread. *Never*: the accuracy was not"
    f" reached. Accuracies within {100 * POINTS:g} point, gains in accuracy within half of the gain"
    f" and other numbers within {100 * SHARE:.0f} % *agree*; *better*: FedOptima does better here"
    " than in the paper; *open*: never in the paper and never here, but here by a method whose"
    " settings are not tuned. Some numbers are of the same runs: the paper states FedOptima's"
    " accuracy in three places.",
    "- Times are virtual, on fleets whose speeds we guess from clock rates. *Fitted fleet*: with"
    " speeds fitted to the paper's own numbers.",
    "- Accuracy comes from real training and is the best of a run's evaluations. Where the recipe"
    " validates on the test data, as the paper apparently does, that flatters every method.",
    "- A *similar accuracy* is 99 % of FedOptima's best. All methods train for equal epochs with a"
    " learning rate that decays until the last one. They reach their best late, so where they"
    " reach it, time to accuracy is mostly time per epoch. The figures *in equal time* (the rate"
    " decays with time) and *until convergence* (a constant rate) do not have this bias; each says"
    " below whether it was run.",
    "- Throughput counts useful samples: those that went through the whole network and were used.",
    "- FL, SplitFed and, without batch normalisation, PiPar take the same steps on the same"
    " batches. With equal settings only one of them is trained; the others have its accuracy, and"
    " times from their own dry runs (exact except for rounding and the random numbers of dropout).",
    "- Where PiPar is trained, a batch has four parts, and its times are those of its authors'"
    " number of parts. With its own split it has the accuracy that it reached with the shared one.",
)


@dataclass(frozen=True)
class Reproduction:
    """Everything that the document is made of."""

    catalogue: Catalogue
    queue: Mapping[str, Sequence[Planned]]
    records: Records
    reasons: Mapping[str, Reason]
    ceilings: Mapping[str, Ceiling] = field(default_factory=dict)  # by workload

    @property
    def figures(self) -> Mapping[str, Figure]:
        return self.catalogue.figures

    @property
    def results(self) -> Results:
        return Results(self.queue, self.shown)

    @cached_property
    def shown(self) -> Retimed:
        return Retimed(self.catalogue, self.queue, self.records)

    def progress(self, name: str) -> tuple[int, int]:
        """Runs of a figure that are finished, and all that have to be made."""
        runs = {run.id for run in distinct([self.queue[name]])}
        return sum(run in self.records for run in runs), len(runs)

    def command(self, name: str) -> str:
        where = " --device cuda" if self.figures[name].kind == "training" else ""
        return f"fedoptima reproduce {name}{where}"


def as_markdown(
    reproduction: Reproduction, pictures: str = PICTURES, more: Iterable[str] = ()
) -> str:
    """``pictures``: the folder of the figures, from where the document is. ``more``: further lines
    between the tables and the figures."""
    return "\n".join(_lines(reproduction, pictures, more)) + "\n"


def _lines(it: Reproduction, pictures: str, more: Iterable[str]) -> Iterator[str]:
    untuned = [name for name, workload in it.catalogue.workloads.items() if not workload.tuned]
    found = [row for row in rows(it.results, it.reasons, untuned) if row.figure in it.figures]
    yield "# The paper's figures, reproduced"
    yield ""
    yield from _INTRODUCTION
    yield ""
    said = [sum(row.verdict is verdict for row in found) for verdict in Verdict]
    counts = ", ".join(
        f"{count} {_COUNTED[verdict][count != 1]}"
        for verdict, count in zip(Verdict, said, strict=True)
    )
    yield f"Of {len(found)} numbers: {counts}."
    yield ""
    yield "| in the paper | what | paper | ours | fitted fleet | verdict | why |"
    yield "|---|---|---:|---:|---:|---|---|"
    for row in found:
        yield f"| {' | '.join(_cells(it, row))} |"
    yield ""
    yield from _tables(it)
    yield from more
    yield "## Figures"
    yield ""
    yield "As one page to zoom: `fedoptima reproduce --draw --merge results/paper`."
    yield ""
    for name, figure in it.figures.items():
        if name in it.queue:
            yield from _figure(it, name, figure, pictures)
    yield from _how(it)


def _cells(it: Reproduction, row: Row) -> list[str]:
    stated = row.stated
    ours = [row.paper, row.ours, row.ours_fitted]
    return [stated.place, what(stated), *ours, row.verdict.value, _why(it, row)]


def what(stated: PaperNumber) -> str:
    whose = "the others'" if stated.against == OTHERS else f"{stated.against}'s"
    against = f" against {whose}" if stated.against else ""
    if stated.measure is Measure.ACCURACY_GAIN:
        against = f" over {stated.against}"
    where = f"{stated.workload}: " if stated.workload else ""
    kind = next((k for k in ("homogeneous", "heterogeneous") if f".{k}." in stated.key), "")
    kind = f", {kind} devices" if kind else ""
    return f"{where}{stated.method}, {_WHAT[stated.measure]}{against}{kind}"


def _why(it: Reproduction, row: Row) -> str:
    if row.verdict is Verdict.NOT_RUN:
        return f"`{it.command(row.figure)}`"
    said = [row.beside, row.stated.note]
    if row.reason is not None:
        said.insert(0, f"{row.reason.text} (`{row.reason.shown_by}`)")
    return "; ".join(filter(None, said))


# ---- tables --------------------------------------------------------------------------------------


def _tables(it: Reproduction) -> Iterator[str]:
    for workload in WORKLOADS:
        table = table_of(it, workload)
        if not table and workload not in it.ceilings:
            continue
        yield f"## {it.catalogue.workloads[workload].title}"
        yield ""
        if table:
            yield from table
            yield ""
        yield from (f"{note}\n" for note in notes_of(it, workload))


def _accuracy_of(workload: str) -> str:
    return f"accuracy-{workload.partition('_')[2]}"


def table_of(it: Reproduction, workload: str) -> list[str]:
    """All methods on one workload; empty if nothing was trained on it."""
    cases = it.results.of(_accuracy_of(workload), workload)
    own = next((list(s.values()) for case, s in cases.items() if case.method == FEDOPTIMA), [])
    if not own:
        return []
    target = target_of(own)
    known = it.ceilings.get(workload)
    ceiling = None if known is None or known.no_ceiling else known
    head = ["method", "seeds", "best accuracy, %"]
    head += ["% of the ceiling"] if ceiling else []
    head += [f"time to {100 * target:.1f} %, h"]
    head += ["idle server, s/epoch", "idle device, s/epoch", "MB/epoch", "server memory, MiB"]
    lines = [f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
    for case, seeds in cases.items():
        cells = _method(case.label, list(seeds.values()), target, ceiling)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def notes_of(it: Reproduction, workload: str) -> list[str]:
    """What a reader of that table has to know."""
    figure, notes = _accuracy_of(workload), []
    planned = [run for run in it.queue.get(figure, ()) if run.workload == workload]
    taught = {run.id: run.case.label for run in planned}
    cases = it.results.of(figure, workload)
    same: dict[str, list[str]] = {}
    for run in planned:
        if run.learned_by and run.case in cases and run.seed == planned[0].seed:
            same.setdefault(taught[run.learned_by], []).append(run.case.label)
    for other, labels in same.items():
        verb = "takes" if len(labels) == 1 else "take"
        notes.append(
            f"Not trained separately: {_listed(labels)}, which {verb} the same steps as *{other}*. "
            f"Accuracy as *{other}*; times from a dry run."
        )
    missing = [run for run in planned if run.case not in cases]
    if planned and not cases:
        notes.append(f"No method has been trained on this yet: `{it.command(figure)}`.")
    elif missing:
        absent = dict.fromkeys(run.case.label for run in missing)
        notes.append(f"Not run yet: {_listed(list(absent))}.")
    notes += [*_by_arithmetic(it, missing, cases), *_settings(planned)]
    if (ceiling := it.ceilings.get(workload)) is not None:
        most = max((run.recipe.stop.epochs or 0.0 for run in planned), default=0.0)
        fewer = "; in fewer epochs than the methods have, so it may be too low"
        notes.append(f"{ceiling.words}{fewer if ceiling.epochs < most else ''}.")
    return notes


def _by_arithmetic(
    it: Reproduction, missing: Sequence[Planned], cases: Mapping[Case, Mapping[int, Record]]
) -> Iterator[str]:
    """How long PiPar, where it is not trained, would take with what SplitFed learned."""
    by_method = {case.method: seeds.values() for case, seeds in cases.items()}
    if FEDOPTIMA not in by_method or _TEACHER not in by_method:
        return
    target, said = target_of(by_method[FEDOPTIMA]), dict[str, dict[str, None]]()
    for run in missing:
        paced = [it.shown.at_pace_of(run.id, each) for each in by_method[_TEACHER]]
        times = [None if each is None else each.run.time_to(target) for each in paced]
        reached = [time / 3600 for time in times if time is not None]
        if reached and len(reached) == len(times):
            said.setdefault(_spread(reached, 2), {})[run.case.label] = None
    for hours, labels in said.items():
        yield (
            f"Estimate: {_listed(list(labels))} would reach {100 * target:.1f} % after {hours} h, "
            f"in as many epochs as *{_TEACHER}*, with times from a dry run. Batch normalisation "
            "over parts of a batch may make it learn less."
        )


def _settings(planned: Sequence[Planned]) -> Iterator[str]:
    """What of training is not the same for all methods."""
    if planned and all(run.recipe.training == planned[0].recipe.training for run in planned):
        yield "All methods have the same optimiser, learning rates and rounds here."
    rounds: dict[int | None, dict[str, None]] = {}
    for run in planned:
        rounds.setdefault(run.recipe.training.iterations, {})[run.case.label] = None
    if len(rounds) > 1:
        each = "; ".join(
            f"{'one pass over the data of a device' if count is None else count} for "
            f"{_listed(list(labels))}"
            for count, labels in rounds.items()
        )
        yield f"Iterations of a round: {each}."


def _listed(labels: Sequence[str]) -> str:
    return ", ".join(f"*{label}*" for label in labels)


def _method(
    label: str, records: Sequence[Record], target: float, ceiling: Ceiling | None
) -> list[str]:
    times = [record.run.time_to(target) for record in records]
    reached = [time / 3600 for time in times if time is not None]
    some = "" if len(reached) == len(times) else f" ({len(reached)} of {len(times)})"
    time = f"{_spread(reached, 2)}{some}" if reached else "never"
    accuracy = [100 * (record.figures["best_accuracy"] or 0.0) for record in records]
    cells = [label, str(len(records)), _spread(accuracy, 1)]
    cells += [f"{fmean(accuracy) / ceiling.best:.1f}"] if ceiling else []
    cells.append(time)
    for name in ("server_idle", "device_idle", "traffic", "memory"):
        found = [v for record in records if (v := MEASURES[name].of(record)) is not None]
        cells.append(brief(fmean(found)) if found else "-")
    return cells


def _spread(values: Sequence[float], digits: int) -> str:
    text = f"{fmean(values):.{digits}f}"
    return f"{text} ± {stdev(values):.{digits}f}" if len(values) > 1 else text


# ---- figures, and how they were made -------------------------------------------------------------


def _figure(it: Reproduction, name: str, figure: Figure, pictures: str) -> Iterator[str]:
    done, every = it.progress(name)
    yield f"### {title_of(figure)}"
    yield ""
    if done:
        yield f"![{figure.title}]({pictures}/{name}.svg)"
        yield ""
    state = "not run" if not done else f"{done} of {counted(every, 'run')}"
    yield f"`{it.command(name)}`: {'all runs' if done == every else state}."
    yield ""
    if figure.note:
        yield figure.note
        yield ""


def _how(it: Reproduction) -> Iterator[str]:
    ids = sorted({run.id for runs in it.queue.values() for run in runs})
    there = [record for each in ids if (record := it.records.get(each)) is not None]
    yield "## How it was made"
    yield ""
    yield "| runs | command | date | fedoptima | machine |"
    yield "|---:|---|---|---|---|"
    for each, count in counted_origins(there):
        by = f"{each.commit}; {each.versions}"
        yield f"| {count} | `{each.command}` | {each.date} | {by} | {each.machine} |"
