"""Runs whose activations, gradients and updates are sent in fewer bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedoptima.core.effects import PROBLEMS, Note
from fedoptima.core.errors import ConfigError
from fedoptima.methods.registry import COMPARED, method_options
from fedoptima.trace.reader import read_trace
from fedoptima.trace.record import Record
from fedoptima.verification.replay import replay
from tests.experiments.runs import (
    CHARGED,
    CHURN,
    FLEET,
    Poison,
    data,
    network,
    run,
    set_up,
    without_metrics,
)

KEYS = ("codec", "gradient_codec", "update_codec")
GIVEN = {"model": network(), "train": data(), "test": data(48, seed=1)}


def coded(method: str, codec: str = "int8") -> dict[str, object]:
    """All that the method sends, coded."""
    keys = [key for key in KEYS if key in method_options(method)]
    if method == "fedoptima":  # with an auxiliary network no gradients are sent
        keys.remove("gradient_codec")
    return {"name": method, **dict.fromkeys(keys, codec)}


@pytest.mark.parametrize("method", COMPARED)
def test_a_coded_run_is_replayed_bit_for_bit(method: str, tmp_path: Path) -> None:
    result = run(method=coded(method), epochs=1.0, fleet={**FLEET, "churn": CHURN}, out=tmp_path)
    found = replay(tmp_path, weights=True, **GIVEN)  # type: ignore[arg-type]
    assert found.identical, found
    assert result.accuracy is not None


@pytest.mark.parametrize("method", COMPARED)
def test_a_dry_run_knows_the_true_bytes(method: str) -> None:
    traces: list[list[Record]] = []
    codec = "bfloat16" if method in ("fedasync", "oafl") else "int8"
    for dry in (False, True):
        records: list[Record] = []
        set_up(
            records, dry=dry, method=coded(method, codec), fleet=CHARGED, stop={"epochs": 1.0}
        ).simulation.run()
        traces.append([without_metrics(record) for record in records])
    assert traces[0] == traces[1]


def test_a_codec_for_gradients_that_are_not_sent_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'int8': with an auxiliary network no gradients are"):
        set_up([], dry=True, method={"name": "fedoptima", "gradient_codec": "int8"})
    ablation = {"name": "fedoptima", "gradient_codec": "int8", "auxiliary": "none"}
    set_up([], dry=True, method=ablation)


def test_worker_processes_give_the_same_bits() -> None:
    one, two = (run(method=coded("pipar"), epochs=1.0, workers=workers) for workers in (1, 2))
    assert one.weights_digest == two.weights_digest
    assert one.trace_digest == two.trace_digest


def test_int8_takes_about_a_quarter_of_the_bytes_and_learns_as_well() -> None:
    plain, small = (run(method=coded("splitfed", codec)) for codec in ("float32", "int8"))
    for way in ("up", "down"):
        before, after = (getattr(each.summary.traffic, way) for each in (plain, small))
        assert after.activations < 0.4 * before.activations or way == "down"
        assert after.gradients < 0.3 * before.gradients or way == "up"
    assert small.accuracy == pytest.approx(plain.accuracy, abs=0.1)
    assert small.summary.memory.peak_activations < 0.4 * plain.summary.memory.peak_activations


class Several(nn.Module):
    """Its first part hands on hidden states, an additive mask, a truth value and a count."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.embed = nn.Embedding(20, 8)
        self.project = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, words: Tensor) -> Tensor:
        padding = words == 0
        hidden = self.project(self.embed(words))
        mask = torch.where(padding, torch.finfo(torch.float32).min, 0.0)
        kept = (~padding).sum(1, keepdim=True)
        weights = (hidden.mean(2) + mask).softmax(1)
        pooled = (torch.tanh(hidden) * weights[:, :, None]).sum(1) * kept / words.shape[1]
        out: Tensor = self.head(pooled)
        return out


def texts(count: int, seed: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    words = torch.randint(1, 20, (count, 6), generator=random)
    words[::3, 4:] = 0
    return words, words[:, 0] % 3


@pytest.mark.parametrize(("method", "codec"), [("fedoptima", "int8"), ("splitfed", "bfloat16")])
def test_masks_and_integers_that_cross_the_cut_are_sent_as_they_are(
    method: str, codec: str
) -> None:
    parts = {
        "model": Several(),
        "train": texts(48, seed=1),
        "test": texts(24, seed=2),
        "split": {"at": "project"},
        "epochs": 1.0,
    }
    one, two = (run(**parts, method=coded(method, codec), workers=w) for w in (1, 2))
    assert one.weights_digest == two.weights_digest
    assert one.trace_digest == two.trace_digest
    dry = run(**parts, method=coded(method, codec), dry=True)
    assert dry.summary.traffic == one.summary.traffic
    assert one.curve[-1].loss == pytest.approx(run(**parts, method=method).curve[-1].loss, abs=0.05)


def test_a_device_whose_activations_are_not_finite_is_found_as_in_float32(tmp_path: Path) -> None:
    inputs, labels = data()
    inputs[17] *= 1000
    model = network()
    model[0].insert(0, Poison())  # type: ignore[operator]
    notes = []
    for codec, workers in (("float32", 1), ("int8", 1), ("int8", 2)):
        method, out = {"name": "fedoptima", "codec": codec}, tmp_path / f"{codec}{workers}"
        parts = {"model": model, "train": (inputs, labels), "epochs": 2.0, "workers": workers}
        run(**parts, method=method, out=out)
        effects = [e for r in read_trace(out / "trace.jsonl.gz") for e in r.effects]
        found = [e for e in effects if isinstance(e, Note) and e.kind in PROBLEMS]
        notes.append([(note.kind, note.about) for note in found])
    assert len(notes[0]) == 1
    assert notes[0] == notes[1] == notes[2]
