"""What goes wrong on one device does not end the run for the others."""

from __future__ import annotations

import json
from pathlib import Path

from torch import nn

from fedoptima.core.effects import Note
from fedoptima.trace.reader import read_trace
from tests.experiments.runs import run


def batch_normed() -> nn.Module:
    """Its first block refuses a batch of one sample."""
    first = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU())
    return nn.Sequential(first, nn.Linear(8, 3))


def test_a_device_with_one_sample_that_batch_norm_refuses_leaves_the_run(tmp_path: Path) -> None:
    rows = tmp_path / "rows.json"
    rows.write_text(
        json.dumps({"slow": [0], "middle": list(range(1, 48)), "fast": list(range(48, 96))})
    )
    result = run(
        model=batch_normed(),
        data={"partition": {"kind": "file", "file": str(rows)}},
        out=tmp_path / "run",
    )
    assert result.reason == "3 epochs done"
    effects = [
        effect for r in read_trace(tmp_path / "run" / "trace.jsonl.gz") for effect in r.effects
    ]
    (note,) = [effect for effect in effects if isinstance(effect, Note)]
    assert (note.kind, note.about) == ("device failed", "slow")
    assert note.text.startswith("ValueError: Expected more than 1 value per channel")
