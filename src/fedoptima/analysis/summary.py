"""A run in figures. Totals are kept; whatever is a ratio of them is derived here, once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise

from fedoptima.analysis.balance import Balance
from fedoptima.analysis.curve import START, Point, Throughput, throughput, throughput_between
from fedoptima.analysis.idle_time import Usage
from fedoptima.analysis.memory import Memory
from fedoptima.analysis.problems import Problem
from fedoptima.analysis.staleness import Staleness
from fedoptima.analysis.traffic import Traffic, Volume
from fedoptima.analysis.work import Work
from fedoptima.core.types import SERVER, NodeId


@dataclass(frozen=True, slots=True)
class Stretch:
    """From one evaluation to the next: about an epoch, unless the recipe says otherwise."""

    seconds: float  # at its end
    epochs: float  # at its end
    throughput: Throughput


@dataclass(frozen=True, slots=True)
class Summary:
    seconds: float  # of training, from the plan to the last record
    epochs: float  # of updates that were accepted
    trained_epochs: float  # and of rounds whose updates have not been handed in, or got lost
    refused_samples: int  # of updates that were not
    versions: int  # merges
    device_samples: int  # trained on
    forwarded_samples: int  # sent by devices without training on them (`method.train_every`)
    server_samples: int  # each batch once
    curve: tuple[Point, ...]
    usage: Mapping[NodeId, Usage]  # busy and idle seconds of every node
    traffic: Traffic
    memory: Memory
    staleness: Staleness
    balance: Balance
    work: Work
    reused_samples: int = 0  # that the server has trained on again
    problems: tuple[Problem, ...] = ()  # of devices, as the server heard of them

    # ---- time --------------------------------------------------------------------------------

    @property
    def server_usage(self) -> Usage:
        return self.usage[SERVER]

    @property
    def device_usage(self) -> Usage:
        """The mean over devices, of each kind of seconds."""
        return Usage.mean([use for node, use in self.usage.items() if node != SERVER])

    def per_epoch(self, amount: float) -> float:
        """Divided by all training but that of refused updates.

        Rounds that are not over when the run ends took time and bytes, too: leaving them out would
        make every epoch of a short asynchronous run longer than it is.
        """
        return amount / self.trained_epochs if self.trained_epochs else 0.0

    def usage_per_epoch(self, usage: Usage) -> Usage:
        return Usage(
            self.per_epoch(usage.busy),
            self.per_epoch(usage.idle_1),
            self.per_epoch(usage.idle_2),
            self.per_epoch(usage.reused),
        )

    # ---- speed -------------------------------------------------------------------------------

    @property
    def throughput(self) -> Throughput:
        return throughput(
            self.device_samples, self.server_samples, self.seconds, self.reused_samples
        )

    @property
    def useful_throughput(self) -> float:
        """Samples per second that went through the whole network and were used."""
        return self.work.useful / self.seconds if self.seconds > 0 else 0.0

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        """Throughput over time; evaluations at the same instant have nothing between them."""
        return tuple(self._stretches())

    def _stretches(self) -> Iterator[Stretch]:
        for before, after in pairwise((START, *self.curve)):
            if after.seconds > before.seconds:
                yield Stretch(after.seconds, after.epochs, throughput_between(before, after))

    # ---- as plain data -----------------------------------------------------------------------

    def plain(self) -> dict[str, object]:
        """Everything, ratios included, ready for JSON."""
        return {
            **asdict(self),
            "usage": {node: self._plain_usage(use) for node, use in self.usage.items()},
            "device_usage": self._plain_usage(self.device_usage),
            "throughput": {**asdict(self.throughput), "useful": self.useful_throughput},
            "stretches": [asdict(stretch) for stretch in self.stretches],
            "traffic": {
                "up": self._plain_volume(self.traffic.up),
                "down": self._plain_volume(self.traffic.down),
            },
        }

    def _plain_usage(self, usage: Usage) -> dict[str, object]:
        return {
            **asdict(usage),
            "idle": usage.idle,
            "utilisation": usage.utilisation,
            "reused_share": usage.reused_share,
            "idle_1_share": usage.idle_1_share,
            "idle_2_share": usage.idle_2_share,
            "per_epoch": asdict(self.usage_per_epoch(usage)),
        }

    def _plain_volume(self, volume: Volume) -> dict[str, object]:
        amounts = {**asdict(volume), "total": volume.total}
        return {
            **amounts,
            "per_epoch": {kind: self.per_epoch(amount) for kind, amount in amounts.items()},
        }

    def to_json(self) -> str:
        return json.dumps(self.plain(), indent=1)
