"""Beyond one label: every ready task learns, whatever the method, and in worker processes."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fedoptima
from fedoptima.cli.views.outcome import show_result
from fedoptima.core.errors import ConfigError
from fedoptima.experiments.result import Result
from fedoptima.tasks.ready import regression

FLEET = {
    "server": {"gflops": 1.0},
    "devices": [{"name": "d", "count": 2, "gflops": 0.001, "mbps": 100.0}],
}
RATE = {"learning_rate": 0.1}
LENGTH, SIDE, IGNORED = 5, 4, -100


def seeded(model: nn.Module) -> nn.Module:
    random = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.3, 0.3, generator=random)
    return model


class Swap(nn.Module):
    def forward(self, value: Tensor) -> Tensor:
        return value.transpose(1, 2)


def dense_network() -> nn.Module:
    """(batch, 2, 4, 4) to (batch, 3, 4, 4), smaller on the way."""
    return seeded(
        nn.Sequential(
            nn.Sequential(nn.Conv2d(2, 8, 3, padding=1, stride=2), nn.ReLU()),
            nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()),
            nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(8, 3, 1)),
        )
    )


def mlp(inputs: int, outputs: int) -> nn.Module:
    return seeded(
        nn.Sequential(
            nn.Sequential(nn.Linear(inputs, 16), nn.ReLU()),
            nn.Sequential(nn.Linear(16, 16), nn.ReLU()),
            nn.Linear(16, outputs),
        )
    )


@dataclass(frozen=True)
class Case:
    model: nn.Module
    inputs: tuple[int, ...]
    outputs: int
    figure: str  # that gets better
    least: float


CASES = {
    "classification": Case(mlp(6, 3), (6,), 3, "accuracy", 0.6),
    "multi-label": Case(mlp(6, 3), (6,), 3, "accuracy", 0.7),
    "regression": Case(mlp(6, 2), (6,), 2, "mae", 0.6),
    "token-level": Case(mlp(6, 3), (LENGTH, 6), 3, "accuracy", 0.6),
    "dense": Case(dense_network(), (2, SIDE, SIDE), 3, "accuracy", 0.5),
}


def samples(task: str, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    case = CASES[task]
    inputs = torch.randn(count, *case.inputs, generator=random)
    match task:
        case "classification":
            return inputs, inputs[:, :3].argmax(1)
        case "multi-label":
            return inputs, inputs[:, :3] > 0
        case "regression":
            return inputs, inputs[:, :2].double() - inputs[:, 2:4]
        case "token-level":
            labels = inputs[..., :3].argmax(-1)
            labels[:, -1] = IGNORED
            return inputs, labels
    labels = (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0).long()
    labels[:, 0, 0] = IGNORED
    return inputs, labels


def run(task: object, of: str | None = None, **changes: object) -> Result:
    name = of or str(task)
    usual: dict[str, object] = {
        "model": CASES[name].model,
        "train": samples(name, 240),
        "test": samples(name, 60, seed=1),
        "task": task,
        "data": {"partition": {"kind": "iid"}},
        "fleet": FLEET,
        "training": {"batch_size": 10, "device": RATE, "server": RATE},
        "epochs": 3,
        "workers": 1,
    }
    return fedoptima.simulate(**{**usual, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["fedoptima", "fl"])
@pytest.mark.parametrize("task", list(CASES))
def test_every_ready_task_learns(task: str, method: str) -> None:
    result = run(task, method=method)
    figures = dict(result.curve[-1].metrics)
    case = CASES[task]
    if case.figure == "mae":
        assert figures["mae"] < case.least
        assert result.accuracy is None
    else:
        assert figures[case.figure] > case.least
    assert figures["loss"] == result.curve[-1].loss


@pytest.mark.parametrize("task", ["regression", "token-level", "dense"])
def test_two_processes_train_a_task_as_one_does(task: str) -> None:
    one, two = (run(task, epochs=1, workers=workers) for workers in (1, 2))
    assert one.weights_digest == two.weights_digest
    assert one.curve == two.curve


@pytest.mark.parametrize("task", ["multi-label", "dense"])
def test_parts_of_a_batch_carry_such_labels(task: str) -> None:
    assert run(task, method="pipar", epochs=1).curve[-1].loss is not None


@pytest.mark.parametrize("task", ["regression", "dense"])
def test_a_dry_run_counts_the_same_bytes(task: str) -> None:
    real, dry = (run(task, epochs=1, dry=dry) for dry in (False, True))
    assert (real.bytes_up, real.seconds) == (dry.bytes_up, dry.seconds)


def test_validation_data_are_held_out_of_any_task() -> None:
    result = run("regression", epochs=1, data={"partition": {"kind": "iid"}, "validation": 0.25})
    assert result.curve[-1].loss is not None


# ---- the user's own ------------------------------------------------------------------------------


def f1(predictions: Tensor, labels: Tensor) -> float:
    found, true = predictions > 0, labels > 0.5
    return float(2 * (found & true).sum() / (found.sum() + true.sum()))


def distance(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs - labels).abs().mean()


def test_metrics_of_the_users_own_see_all_validation_data() -> None:
    seen: list[tuple[int, ...]] = []

    def count(predictions: Tensor, labels: Tensor) -> int:
        seen.append((*predictions.shape, *labels.shape))
        return len(labels)

    task = {"name": "multi-label", "metrics": {"f1": f1, "count": count}}
    result = run(task, "multi-label", epochs=1, training={"batch_size": 10, "evaluation_batch": 7})
    figures = dict(result.curve[-1].metrics)
    assert figures["count"] == 60
    assert 0 < figures["f1"] <= 1
    assert set(seen) == {(60, 3, 60, 3)}


def test_metrics_are_the_same_in_worker_processes() -> None:
    task = {"name": "multi-label", "metrics": {"f1": f1}}
    one, two = (run(task, "multi-label", epochs=1, workers=workers) for workers in (1, 2))
    assert one.curve == two.curve
    assert "f1" in dict(two.curve[-1].metrics)


def test_a_task_of_the_users_own() -> None:
    def read(item: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return item["x"], item["y"]

    def items(count: int) -> list[dict[str, Tensor]]:
        rows = zip(*samples("regression", count), strict=True)
        return [{"x": x, "y": y.float()} for x, y in rows]

    task = fedoptima.Task(loss=distance, read=read)
    result = run(task, "regression", train=items(60), test=items(20), epochs=1)
    assert list(result.metrics) == ["loss"]


def test_a_run_is_resumed_with_its_task(tmp_path: Path) -> None:
    out = tmp_path / "run"
    whole = run("dense", epochs=2)
    stopped = iter([False] * 150)
    with pytest.raises(fedoptima.Interrupted):
        run("dense", epochs=2, out=out, interrupted=lambda: next(stopped, True))
    resumed = fedoptima.resume(
        out,
        model=CASES["dense"].model,
        train=samples("dense", 240),
        test=samples("dense", 60, seed=1),
    )
    assert resumed.weights_digest == whole.weights_digest


# ---- what is seen of a metric --------------------------------------------------------------------


def reported(folder: Path) -> str:
    page = folder.with_suffix(".html")
    fedoptima.report(folder, out=page, advice=False)
    return page.read_text()


def test_a_metric_of_the_users_own_ends_a_run_and_is_in_all_its_files(tmp_path: Path) -> None:
    task = {"name": "multi-label", "metrics": {"f1": f1}}
    stop = {"epochs": 30, "metric": "f1", "target": 0.4}
    result = run(task, "multi-label", epochs=None, stop=stop, out=tmp_path / "run")
    assert result.reason.startswith("f1 0.")
    assert result.metrics["f1"] >= 0.4
    rows = list(csv.DictReader((tmp_path / "run" / "metrics.csv").open()))
    assert float(rows[-1]["f1"]) == result.metrics["f1"]
    stored = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert stored["curve"][-1]["metrics"] == dict(result.metrics)
    page = reported(tmp_path / "run")
    assert "f1 over time" in page
    assert "final f1" in page
    assert fedoptima.replay(tmp_path / "run").identical


def test_what_is_printed_of_a_run_has_the_figures_of_its_task(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = run("regression", epochs=1)
    words = f"mae {result.metrics['mae']:.3g}, loss {result.metrics['loss']:.3g}"
    assert f"figures  {words}" in str(result)
    show_result(result)
    assert words in capsys.readouterr().out
    assert "figures" not in str(run("classification", epochs=1))


def test_without_an_accuracy_the_report_shows_the_loss(tmp_path: Path) -> None:
    run("regression", epochs=1, out=tmp_path / "run")
    page = reported(tmp_path / "run")
    assert "loss over time" in page
    assert "mae over time" in page
    assert "Accuracy over time" not in page


def test_devices_are_measured_on_what_they_hold_out_of_their_own_data(tmp_path: Path) -> None:
    data = {"partition": {"kind": "iid"}, "device_validation": 0.25}
    stop = {"epochs": 2, "metric": "devices_worst_accuracy", "patience": 9.0}
    usual = {"epochs": None, "data": data, "stop": stop}
    one = run("classification", **usual, out=tmp_path / "run")
    assert one.device_samples == 2 * 180
    assert set(one.device_metrics) == {"d-1", "d-2"}
    accuracies = [figures["accuracy"] for figures in one.device_metrics.values()]
    assert one.metrics["devices_worst_accuracy"] == min(accuracies)
    assert one.metrics["devices_mean_accuracy"] == sum(accuracies) / 2
    losses = [figures["loss"] for figures in one.device_metrics.values()]
    assert one.metrics["devices_worst_loss"] == max(losses)
    assert "Devices on their own data" in reported(tmp_path / "run")
    assert run("classification", **usual, workers=2).curve == one.curve
    dry = run("classification", data=data, epochs=2, dry=True)
    assert dry.device_samples == one.device_samples


@pytest.mark.parametrize("task", ["regression", regression()], ids=["by name", "as a Task"])
def test_a_loss_of_ones_own_sees_outputs_in_the_shape_of_the_labels(task: object) -> None:
    """Else torch would spread (batch, 1) and (batch,) over a square, and return a number still."""
    shapes = set()

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        shapes.add((outputs.shape, labels.shape))
        return nn.functional.l1_loss(outputs, labels)

    inputs = torch.randn(64, 6)
    train = (inputs, inputs.sum(1))
    run(task, "regression", model=mlp(6, 1), train=train, test=train, loss=loss, epochs=1)
    assert shapes
    assert all(outputs == labels for outputs, labels in shapes)


# ---- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"loss": "mse"},
            r"loss='mse': a loss is not a name; for this one choose task='regression'",
        ),
        ({"loss": nn.CrossEntropyLoss}, "is a class; give an instance of it, CrossEntropyLoss()"),
        (
            {"loss": nn.CrossEntropyLoss(reduction="none")},
            "one loss for each; it must return their",
        ),
        ({"loss": nn.CrossEntropyLoss(reduction="sum")}, "the loss is the sum over the batch"),
        ({"loss": nn.functional.mse_loss}, r"loss fails on outputs \(2, 3\)"),
        ({"loss": lambda outputs, labels: 0.0}, "the loss returns float"),
        ({"loss": lambda out, labels: (out.argmax(1) - labels).float().mean()}, "no gradient"),
        ({"task": fedoptima.Task}, "task is the class Task; give an instance"),
        ({"task": "regresion"}, "task='regresion': unknown; did you mean 'regression'"),
        ({"task": {"name": "dense", "ignored": 3}}, "its options are loss, metrics, read, size"),
        ({"task": {"metrics": {"f1": type(None)}}}, r"metrics\['f1'\] = NoneType: is a class"),
        ({"task": {"metrics": {"loss": f1}}}, "has a figure of that name already"),
        ({"task": {"metrics": {"f1": f1}}}, "metric 'f1' fails on predictions"),
        ({"task": "multi-label"}, "give a row of 1 for each sample"),
        ({"task": "token-level"}, "one integer class number for each position"),
        ({"task": "regression"}, r"it must return \(2, 1\)"),
        ({"stop": {"metric": "f1", "target": 0.5}}, "'f1'}: unknown; the figures of"),
    ],
)
def test_a_mistake_gets_a_sentence(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(**{"task": "classification", "of": "classification", "epochs": 1, **changes})


def test_float_labels_without_a_task_are_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match="say what they are: task='regression' or"):
        run(None, "regression")


def test_data_without_classes_are_not_divided_by_them() -> None:
    with pytest.raises(ConfigError, match=r"'kind': 'iid'\}\}, 'quantity' or 'file'"):
        run("regression", data={})


def test_a_target_accuracy_needs_a_task_with_an_accuracy() -> None:
    with pytest.raises(ConfigError, match=r"use stop=\{'metric': \.\.\.\}"):
        run("regression", stop={"target_accuracy": 0.5})


def test_labels_outside_of_the_classes_are_named() -> None:
    inputs, labels = samples("dense", 20)
    labels[3, 1, 1] = -5
    with pytest.raises(ConfigError, match=r"numbered 0 to 2 \(and -100\).*see row 3\)"):
        run("dense", train=(inputs, labels))
