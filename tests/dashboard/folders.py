"""Run folders made by hand: from records, whole or growing, as a simulation or a real run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from fedoptima.core.types import SERVER, NodeId
from fedoptima.trace.record import Record
from fedoptima.trace.writer import TraceWriter
from tests.support.descriptions import described

RECIPE: Mapping[str, object] = {
    "name": "story",
    "seed": 7,
    "model": {"name": "vgg5"},
    "data": {"name": "digits"},
    "method": {"name": "fedoptima", "activation_cap": 5},
    "stop": {"epochs": 10},
}


class GrowingRun:
    """A run that a test writes on; ``networked``: every device into a file of its own."""

    def __init__(self, path: Path, *, networked: bool = False, cap: int = 5) -> None:
        self.path = path
        path.mkdir(parents=True)
        description = described(network=networked, cap=cap, recipe=RECIPE)
        (path / "config.json").write_text(json.dumps(description.to_plain()))
        self._networked = networked
        self._writers = {SERVER: TraceWriter(path / "trace.jsonl.gz", {})}
        if networked:
            (path / "devices").mkdir()

    def write(self, records: Iterable[Record]) -> None:
        """And everything can be read."""
        for record in records:
            self._writer(record.node).write(record)
        for writer in self._writers.values():
            writer.mark()

    def _writer(self, node: NodeId) -> TraceWriter:
        if not self._networked:
            return self._writers[SERVER]
        if node not in self._writers:
            path = self.path / "devices" / f"{node}.jsonl.gz"
            self._writers[node] = TraceWriter(path, {})
        return self._writers[node]

    def end(self, **figures: object) -> None:
        for writer in self._writers.values():
            writer.close()
        (self.path / "summary.json").write_text(json.dumps({"reason": "done", **figures}))


def write_run(path: Path, records: Iterable[Record], *, networked: bool = False) -> Path:
    """A finished one."""
    run = GrowingRun(path, networked=networked)
    run.write(records)
    run.end()
    return path
