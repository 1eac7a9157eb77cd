"""The result of a comparison: its runs, its rows, and both as text."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from fedoptima.comparison.rows import ComparedRuns
from fedoptima.comparison.table import as_markdown


@dataclass(frozen=True)
class Comparison(ComparedRuns):
    directory: Path | None = None

    def to_json(self) -> str:
        plain = {
            "about": self.about.to_json(),
            "target": self.target,
            "reference": self.reference,
            "rows": [asdict(row) for row in self.rows],
            "runs": [{k: v for k, v in asdict(run).items() if k != "curve"} for run in self.runs],
        }
        return json.dumps(plain, indent=1)

    def to_markdown(self) -> str:
        return as_markdown(self)
