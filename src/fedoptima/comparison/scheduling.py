"""The scheduler ablation (paper, section 6.5.2): the counter against first come, first served.

They can differ only where batches wait for each other: at a server that is slower than what the
devices send, or at a cap omega below the number of devices. Elsewhere the server takes the same
batches under both; only those that came within a step of one another change places
(docs/decisions/0029).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest

from fedoptima.analysis.accounts import Accounts
from fedoptima.comparison.dry_pace import Conditions, conditions_of, prepared
from fedoptima.config.schema import Recipe
from fedoptima.core.events import JobDone
from fedoptima.core.jobs import ServerStep
from fedoptima.core.stopping import StopRule
from fedoptima.core.types import NodeId
from fedoptima.trace.record import Record

EPOCHS = 20.0
SCHEDULERS = ("counter", "fifo")

Step = tuple[NodeId, int]  # whose batch, and its number


@dataclass(frozen=True)
class Setting:
    name: str
    conditions: Conditions
    cap: int | None = None  # omega; None: the method's default


@dataclass(frozen=True)
class Outcome:
    jain: float | None  # of the batches that the server used from each device
    useful: float  # samples per second
    server_idle: float  # share of its time
    steps: tuple[Step, ...]  # of the server, in order


@dataclass(frozen=True)
class Ablation:
    setting: Setting
    counter: Outcome
    fifo: Outcome

    @property
    def same(self) -> bool:
        """The server has used the same batches."""
        return Counter(self.counter.steps) == Counter(self.fifo.steps)

    @property
    def moved(self) -> float:
        """The share of the server's steps in whose place another one is."""
        pairs = zip_longest(self.counter.steps, self.fifo.steps)
        steps = max(1, len(self.counter.steps), len(self.fifo.steps))
        moved: int = sum(one != other for one, other in pairs)
        return moved / steps

    def plain(self) -> dict[str, object]:
        found = {name: asdict(getattr(self, name)) for name in SCHEDULERS}
        for outcome in found.values():
            outcome["steps"] = len(outcome["steps"])
        return {"setting": asdict(self.setting), **found, "same": self.same, "moved": self.moved}


def settings(recipe: Recipe) -> Iterator[Setting]:
    """As the recipe is, and where the schedulers have something to decide."""
    base = conditions_of(recipe)
    devices = len(prepared(recipe, "fedoptima", {}, None, StopRule(rounds=1)).fleet.devices)
    fast_links = replace(base, mbps=8 * base.mbps)
    slow_server = replace(base, server_gflops=base.server_gflops / 7.5)
    yield Setting("as described", base)
    yield Setting("links x 8", fast_links)
    yield Setting("server / 7.5", slow_server)
    yield Setting("links x 8, server / 7.5", replace(slow_server, mbps=fast_links.mbps))
    for cap in (devices // 2, devices // 4):
        yield Setting(f"omega = {cap}", base, cap)
        yield Setting(f"omega = {cap}, links x 8", fast_links, cap)


def ablate(recipe: Recipe, setting: Setting, epochs: float = EPOCHS) -> Ablation:
    """Both schedulers, dry."""
    return Ablation(setting, *(_run(recipe, setting, epochs, name) for name in SCHEDULERS))


def _run(recipe: Recipe, setting: Setting, epochs: float, scheduler: str) -> Outcome:
    options: dict[str, object] = {"scheduler": scheduler}
    if setting.cap is not None:
        options["activation_cap"] = setting.cap
    experiment = prepared(recipe, "fedoptima", options, setting.conditions, StopRule(epochs=epochs))
    accounts, steps = Accounts(), list[Step]()

    def observe(record: Record) -> None:
        accounts.observe(record)
        event = record.event
        if isinstance(event, JobDone) and isinstance(event.job, ServerStep):
            steps.append((event.job.origin, event.job.seq))

    experiment.assemble([observe], dry=True).simulation.run()
    summary = accounts.summary()
    return Outcome(
        summary.balance.batches_jain,
        summary.useful_throughput,
        1 - summary.server_usage.utilisation,
        tuple(steps),
    )


def as_table(found: list[Ablation]) -> list[str]:
    """Markdown."""
    lines = [
        "| setting | server idle, % | Jain, counter | Jain, FIFO | useful samples/s, counter | "
        "FIFO | same batches | steps moved, % |",
        "|---|---:|---:|---:|---:|---:|---|---:|",
    ]
    for each in found:
        counter, fifo = each.counter, each.fifo
        jains = (f"{one.jain:.4f}" if one.jain is not None else "-" for one in (counter, fifo))
        lines.append(
            f"| {each.setting.name} | {100 * counter.server_idle:.1f} | {' | '.join(jains)} | "
            f"{counter.useful:,.1f} | {fifo.useful:,.1f} | {'yes' if each.same else 'no'} | "
            f"{100 * each.moved:.1f} |"
        )
    return lines
