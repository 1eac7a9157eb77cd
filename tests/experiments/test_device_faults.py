"""What goes wrong on one device does not end the run for the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedoptima.core.effects import Note
from fedoptima.core.errors import FedOptimaError, RunFailed
from fedoptima.experiments.run_directory import RunDirectory
from fedoptima.trace.reader import read_trace
from tests.experiments.runs import network, run


def batch_normed() -> nn.Module:
    """Its first block refuses a batch of one sample."""
    first = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU())
    return nn.Sequential(first, nn.Linear(8, 3))


def one_sample(tmp_path: Path) -> dict[str, object]:
    rows = tmp_path / "rows.json"
    rows.write_text(
        json.dumps({"slow": [0], "middle": list(range(1, 48)), "fast": list(range(48, 96))})
    )
    return {"partition": {"kind": "file", "file": str(rows)}}


def test_a_device_with_one_sample_that_batch_norm_refuses_leaves_the_run(tmp_path: Path) -> None:
    result = run(model=batch_normed(), data=one_sample(tmp_path), out=tmp_path / "run")
    assert result.reason == "3 epochs done"
    effects = [
        effect for r in read_trace(tmp_path / "run" / "trace.jsonl.gz") for effect in r.effects
    ]
    (note,) = [effect for effect in effects if isinstance(effect, Note)]
    assert (note.kind, note.about) == ("device failed", "slow")
    assert note.text.startswith("batch normalisation cannot learn from a batch of one sample")
    assert "at least 2" in note.text  # the way out


@pytest.mark.parametrize("method", ["fedoptima", "fl", "splitfed"])
def test_batch_norm_and_batches_of_one_sample_are_told_with_the_way_out(method: str) -> None:
    with pytest.raises(FedOptimaError, match=r"one sample: set training=.*to at least 2"):
        run(model=batch_normed(), method=method, training={"batch_size": 1})


def test_a_device_that_failed_is_named_in_result_and_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = run(model=batch_normed(), data=one_sample(tmp_path), out=tmp_path / "run")
    (warning,) = [text for text in result.warnings if "had a problem" in text]
    assert warning.startswith("slow had a problem: ")
    assert warning in caplog.messages
    assert RunDirectory(tmp_path / "run").read_result().warnings == result.warnings


class OutOfMemory(nn.Module):
    """A device's side that this machine has no memory for after some batches."""

    def __init__(self, error: type[Exception], text: str) -> None:
        super().__init__()
        self.error, self.text = error, text
        self.calls = 0

    def forward(self, value: Tensor) -> Tensor:
        self.calls += self.training
        if self.calls > 5:
            raise self.error(self.text)
        return value


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (torch.OutOfMemoryError, "CUDA out of memory. Tried to allocate 20.00 MiB."),
        (RuntimeError, "DefaultCPUAllocator: can't allocate memory: you tried to allocate"),
        (MemoryError, ""),
    ],
)
def test_a_run_ends_when_the_machine_has_no_memory_instead_of_going_on_without_a_device(
    workers: int, error: type[Exception], text: str
) -> None:
    first, *others = network()
    model = nn.Sequential(nn.Sequential(first, OutOfMemory(error, text)), *others)
    with pytest.raises(RunFailed, match="memory was not enough"):
        run(model=model, workers=workers, split={"at": 1})
