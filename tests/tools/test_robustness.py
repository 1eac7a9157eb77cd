"""The command that measures robust merging, on the digits: what it attacks, runs and records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedoptima.core.jobs import AuxiliaryStep, ExportModel, Forward, LoadModel, Prepare
from fedoptima.core.types import NodeId, PayloadId
from fedoptima.data.loader import Loader
from fedoptima.engine.payloads import Tensors, unpack
from tests.engine.bench import Bench, dense_model, samples
from tools.robustness.__main__ import main
from tools.robustness.attacks import HostileEngine, WrongLabels
from tools.robustness.runs import has_option

RECIPE = Path(__file__).parents[2] / "recipes" / "demo_digits.toml"


def run(folder: Path, attacks: str, options: str = "none,refuse") -> dict[str, Any]:
    chosen = ["--attacks", attacks, "--options", options, "--methods", "fl"]
    main([str(RECIPE), *chosen, "--seeds", "1", "--epochs", "5", "--out", str(folder)])
    record: dict[str, Any] = json.loads((folder / "demo_digits.json").read_text(encoding="utf-8"))
    return record


def test_the_recommended_option_withstands_what_ruins_a_plain_run(tmp_path: Path) -> None:
    runs = {entry["option"]: entry for entry in run(tmp_path, "sign_flip")["runs"]}
    assert runs["none"]["accuracy"] < 0.5
    assert runs["refuse"]["accuracy"] > 0.9
    assert runs["refuse"]["refused"]["hostile"] > 0
    assert len(runs["none"]["devices"]) == 2


def test_what_is_recorded_is_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = run(tmp_path, "noise", "refuse")
    capsys.readouterr()
    after = run(tmp_path, "noise", "refuse")
    assert after["runs"] == before["runs"]
    assert "seed 1" not in capsys.readouterr().out
    assert before["accuracy"][0]["mean"] == before["runs"][0]["accuracy"]
    assert {"command", "fedoptima", "torch", "machine"} <= before.keys()


def test_trimmed_means_are_measured_where_there_is_a_barrier() -> None:
    assert has_option("fl", "trimmed_mean")
    assert not has_option("fedoptima", "trimmed_mean")
    assert has_option("fedoptima", "refuse")


# ---- attacks -----------------------------------------------------------------------------------


def handed_in(attack: str, strength: float = 3.0) -> tuple[Tensors, Tensors, Tensors]:
    """The first model, an honest device's after one step, and a hostile one's."""
    bench = Bench(dense_model(), samples())
    engine = HostileEngine(bench.workload, NodeId("d"), bench.loaders["d"], attack, strength)
    for job in (Prepare(bench.plan), LoadModel(bench.first_model, 0.0)):
        engine.execute(job, PayloadId("d/0/0"))
    found = []
    for one in (bench.devices["d"], engine):
        for step in (Forward(0), AuxiliaryStep(0)):
            one.execute(step, PayloadId("d/0/1"))
        found.append(unpack(one.execute(ExportModel(), PayloadId("d/0/2")).result))
    return unpack(bench.first_model), found[0], found[1]


def test_a_flipped_sign_is_the_opposite_of_what_was_learnt() -> None:
    first, honest, sent = handed_in("sign_flip")
    for name, tensor in sent.items():
        assert torch.allclose(tensor - first[name], -3 * (honest[name] - first[name]), atol=1e-6)


def test_noise_is_as_many_times_as_long_as_what_was_learnt() -> None:
    first, honest, sent = handed_in("noise")
    for name, tensor in sent.items():
        learnt = (honest[name] - first[name]).norm()
        assert torch.allclose((tensor - first[name]).norm(), 3 * learnt, rtol=1e-3)


def test_flipped_labels_are_all_that_differs() -> None:
    bench = Bench(dense_model(), samples())
    rows = torch.arange(28).numpy()
    options = {"batch_size": 7, "seed": 1, "node": "d"}
    honest = Loader(bench.workload.dataset, rows, **options)  # type: ignore[arg-type]
    wrong = WrongLabels(bench.workload.dataset, rows, **options)  # type: ignore[arg-type]
    inputs, labels = honest.batch(3)
    assert torch.equal(wrong.batch(3)[0], inputs)
    assert torch.equal(wrong.batch(3)[1], 2 - labels)
