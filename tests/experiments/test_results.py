"""What a run leaves: one model that loads anywhere, digests that tell runs apart, files."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from fedoptima.core.errors import ConfigError, Stalled, TrainingDiverged
from fedoptima.core.types import SERVER
from fedoptima.experiments.result import weights_digest
from fedoptima.experiments.simulation import resume
from fedoptima.methods import AsyncStaleness, Method, Offer
from fedoptima.methods.fedasync import fedasync
from fedoptima.trace.reader import read_header, read_trace
from tests.experiments.runs import TRAINING, data, network, run

METHODS = ["fedoptima", "fl", {"name": "fedoptima", "auxiliary": "none"}]


def accuracy(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> float:
    with torch.no_grad():
        return int((model.eval()(inputs).argmax(1) == labels).sum()) / len(labels)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_the_saved_model_is_the_plain_model_with_the_runs_final_accuracy(
    method: object, tmp_path: Path
) -> None:
    result = run(method=method, out=tmp_path / "run", epochs=5.0)
    plain = network(seed=77)  # other first weights: all must come from the file
    plain.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"), strict=True)
    assert result.accuracy == accuracy(plain, *data(48, seed=1))
    assert result.accuracy > 0.5, "it learned nothing, so it shows nothing"
    assert weights_digest(plain.state_dict()) == result.weights_digest


def test_a_result_loads_into_a_plain_model() -> None:
    result = run()
    plain = result.load_into(network(seed=77))
    assert accuracy(plain, *data(48, seed=1)) == result.accuracy


@pytest.mark.parametrize("method", ["fedoptima", "fl"])
def test_the_same_seed_gives_the_same_digests_and_another_seed_others(method: str) -> None:
    first, again, other = run(method=method), run(method=method), run(method=method, seed=2)
    assert first.trace_digest == again.trace_digest
    assert first.weights_digest == again.weights_digest
    assert other.trace_digest != first.trace_digest
    assert other.weights_digest != first.weights_digest


def test_what_was_drawn_before_a_run_does_not_change_it() -> None:
    torch.manual_seed(1)
    first = run()
    torch.manual_seed(2)
    torch.rand(5)
    assert run().weights_digest == first.weights_digest


def test_a_run_leaves_the_callers_world_as_it_was() -> None:
    torch.manual_seed(11)
    generator = torch.get_rng_state()
    torch.use_deterministic_algorithms(False)
    model = network().eval()
    weights = weights_digest(model.state_dict())
    run(model=model)
    assert torch.equal(torch.get_rng_state(), generator)
    assert not torch.are_deterministic_algorithms_enabled()
    assert weights_digest(model.state_dict()) == weights
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_run_that_fails_leaves_the_callers_world_as_it_was_too() -> None:
    generator = torch.get_rng_state()
    inputs, labels = data()
    with pytest.raises(Stalled):
        run(train=(inputs.sign() * 3e38, labels))
    assert torch.equal(torch.get_rng_state(), generator)
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_run_directory_holds_what_it_says(tmp_path: Path) -> None:
    result = run(out=tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {
        "config.json",
        "trace.jsonl.gz",
        "metrics.csv",
        "summary.json",
        "model.safetensors",
        "last_state",
    }
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["accuracy"] == result.accuracy
    assert summary["weights_digest"] == result.weights_digest
    assert summary["usage"].keys() == {SERVER, "slow", "middle", "fast"}
    with (tmp_path / "run" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["accuracy"]) for row in rows] == [p.accuracy for p in result.curve]
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    header = read_header(tmp_path / "run" / "trace.jsonl.gz")
    assert header["recipe"] == config["recipe"]
    assert config["recipe"]["training"]["batch_size"] == TRAINING["batch_size"]
    assert sum(1 for _ in read_trace(tmp_path / "run" / "trace.jsonl.gz")) == result.events


def test_a_dry_run_leaves_no_model_and_has_no_accuracy(tmp_path: Path) -> None:
    result = run(out=tmp_path / "run", dry=True)
    assert not (tmp_path / "run" / "model.safetensors").exists()
    assert result.accuracy is None
    assert result.best_accuracy is None
    assert result.time_to(0.1) is None
    assert result.weights == {}


def test_a_directory_that_is_taken_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(ConfigError, match=r"exists already; choose another folder \(out=\.\.\.\)$"):
        run(out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_mistake_found_at_the_start_leaves_no_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"split={'at': 9}"):
        run(out=tmp_path / "run", split={"at": 9})
    assert run(out=tmp_path / "run").directory == tmp_path / "run"


DIVERGES = {"learning_rate": 1e30, "momentum": 0.0}


@pytest.mark.parametrize(
    ("training", "error", "said"),
    [
        (
            {"server": DIVERGES},
            Stalled,
            "every device.*server's model infinite.*lower the learning rate",
        ),
        (
            {"device": DIVERGES},
            Stalled,
            r"every device.*slow, middle, fast: the training loss.*lower the",
        ),
        (
            {"device": DIVERGES, "on_divergence": "end"},
            TrainingDiverged,
            r"fast: .the training loss.*lower",
        ),
    ],
)
def test_a_run_that_diverges_says_where_and_what_to_do_and_keeps_its_trace(
    training: dict[str, object], error: type[Exception], said: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=f"{said}.*trace is in"):
        run(training={"batch_size": 8, **training}, out=tmp_path / "run")
    assert list(read_trace(tmp_path / "run" / "trace.jsonl.gz"))
    assert re.search(said, (tmp_path / "run" / "failure.txt").read_text())


def test_a_run_that_an_error_of_the_users_code_ends_has_failed(tmp_path: Path) -> None:
    class Broken(AsyncStaleness):
        def weight(self, offer: Offer) -> float:
            return 1 / (4 - offer.version)

    def build(devices: int) -> Method:
        return replace(fedasync(devices), aggregation=partial(Broken, 8))

    with pytest.raises(ZeroDivisionError):
        run(method=build, out=tmp_path / "run")
    assert (tmp_path / "run" / "failure.txt").read_text() == "ZeroDivisionError: division by zero\n"


def test_curve_and_counts_make_sense() -> None:
    result = run(epochs=4.0)
    assert [round(point.epochs) for point in result.curve] == [1, 2, 3, 4]
    times = [point.seconds for point in result.curve]
    assert times == sorted(times)
    assert result.device_samples >= 4 * 96
    # The server may be done with a batch while its device is still at its auxiliary step.
    assert 0 < result.server_samples <= result.device_samples + 3 * 8
    assert result.best_accuracy == max(p.accuracy for p in result.curve if p.accuracy is not None)
    assert result.time_to(0.0) == times[0]
    assert result.time_to(1.1) is None
    assert 0 < result.server_utilisation <= 1
    assert 0 < result.device_utilisation <= 1
    assert result.versions >= result.rounds > 0


def test_a_digest_sees_every_bit_of_every_kind_of_tensor() -> None:
    weights = {"a": torch.ones(2, dtype=torch.bfloat16), "n": torch.tensor(3)}
    same = {"n": torch.tensor(3), "a": torch.ones(2, dtype=torch.bfloat16)}
    assert weights_digest(weights) == weights_digest(same)
    assert weights_digest(weights) != weights_digest({**weights, "n": torch.tensor(4)})
    assert weights_digest(weights) != weights_digest({**weights, "a": -weights["a"]})
    assert weights_digest(weights) != weights_digest({**weights, "a": torch.ones(2)})
    assert weights_digest(weights) != weights_digest({"b": weights["a"], "n": weights["n"]})


def test_the_result_of_a_finished_run_is_read_back_from_its_folder(tmp_path: Path) -> None:
    result = run(out=tmp_path / "run", data={"partition": {"kind": "iid"}, "validation": 0.25})
    again = resume(tmp_path / "run")
    assert replace(again, weights={}) == replace(result, weights={})
    assert weights_digest(again.weights) == result.weights_digest
    assert json.loads(again.to_json()) == json.loads(result.to_json())


def test_a_damaged_result_is_refused_with_its_folder(tmp_path: Path) -> None:
    run(out=tmp_path / "run")
    (tmp_path / "run" / "summary.json").write_text("{}")
    with pytest.raises(ConfigError, match="run: its result is damaged"):
        resume(tmp_path / "run")


@pytest.mark.parametrize("method", ["fedoptima", "fl"])
def test_with_held_out_validation_data_the_test_accuracy_is_reported_too(
    method: str, tmp_path: Path
) -> None:
    held_out = {"partition": {"kind": "iid"}, "validation": 0.25}
    result = run(method=method, out=tmp_path / "run", data=held_out, epochs=5.0)
    assert result.test_accuracy == accuracy(result.load_into(network()), *data(48, seed=1))
    assert result.test_accuracy > 0.5
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["test_accuracy"] == result.test_accuracy


def test_without_held_out_data_the_accuracy_is_that_of_the_test_set() -> None:
    assert run().test_accuracy is None
    assert run(dry=True, data={"partition": {"kind": "iid"}, "validation": 0.25}).accuracy is None


def test_a_device_whose_data_hardly_counts_is_named_in_result_and_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    result = run(dry=True, method={"name": "fedasync", "max_delay": 0}, epochs=6.0)
    assert result.summary.balance.devices["slow"].updates == 0
    (warning, *_) = result.warnings
    assert warning.startswith("middle and slow held 66.7 % of the data and had 0.0 % of the")
    assert "leave method.max_delay out" in warning
    assert warning in caplog.messages
    assert json.loads(result.to_json())["warnings"] == list(result.warnings)
    caplog.clear()
    assert run(dry=True, method="fedasync", epochs=6.0).warnings == ()
    assert not caplog.messages
