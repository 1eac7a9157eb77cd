"""The package from Python, with the user's own things."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset as TorchDataset

import fedoptima
from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.core.errors import ConfigError
from fedoptima.data.custom import as_dataset
from fedoptima.experiments.given import Given
from fedoptima.experiments.parts import recipe_from
from fedoptima.experiments.setup import prepare
from tests.experiments.runs import FLEET, data, network, run

RECIPES = Path(__file__).parents[2] / "recipes"


class Residual(nn.Module):
    """No Sequential: where it may be cut is found in its graph."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.first = nn.Conv2d(4, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(64, 3)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.stem(images))
        hidden = hidden + torch.relu(self.norm(self.first(hidden)))
        hidden = hidden + torch.relu(self.second(hidden))
        return self.head(hidden.flatten(1))


@pytest.mark.parametrize("method", ["fedoptima", "fl"])
def test_a_module_of_ones_own_and_two_pairs_of_tensors_are_enough(method: str) -> None:
    torch.manual_seed(0)
    model = Residual()
    result = fedoptima.simulate(
        model=model,
        train=data(),
        test=data(48, seed=1),
        fleet=FLEET,
        method=method,
        epochs=6,
        training={"batch_size": 8},
    )
    assert result.accuracy is not None
    assert result.accuracy > 0.5
    model.load_state_dict(dict(result.weights), strict=True)


def test_a_model_without_batch_norm_and_flat_float64_arrays_do() -> None:
    inputs, labels = data()
    flat = inputs.flatten(1).double().numpy()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
    result = run(model=model, train=(flat, labels.numpy()), test=(flat, labels.numpy()))
    assert result.split == 1
    assert all(tensor.dtype == torch.float32 for tensor in result.weights.values())


def test_layers_without_weights_join_the_block_before_so_no_side_is_empty() -> None:
    inputs, labels = data()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3), nn.LogSoftmax(dim=1)
    )
    for auxiliary in ("default", "none"):
        method = {"name": "fedoptima", "auxiliary": auxiliary}
        result = run(model=model, train=(inputs, labels), method=method, split=None)
        assert result.split == 1  # Flatten + Linear + ReLU: raw data never leaves the device


class Pictures(TorchDataset[tuple[Tensor, int]]):
    def __init__(self, inputs: Tensor, labels: Tensor) -> None:
        self.inputs, self.labels = inputs, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.inputs[index], int(self.labels[index])


def test_a_map_style_dataset_is_the_same_as_its_tensors() -> None:
    by_items = run(train=Pictures(*data()), test=Pictures(*data(48, seed=1)))
    assert by_items.weights_digest == run().weights_digest


def test_a_held_out_share_leaves_the_test_set_alone() -> None:
    held = run(data={"partition": {"kind": "iid"}, "validation": 0.25}, epochs=1.0)
    inputs, labels = data(48, seed=1)
    garbage = run(
        data={"partition": {"kind": "iid"}, "validation": 0.25},
        test=(torch.zeros_like(inputs), labels),
        epochs=1.0,
    )
    assert held.weights_digest == garbage.weights_digest
    assert held.accuracy == garbage.accuracy
    assert held.device_samples < run(epochs=1.0).device_samples


def test_a_loss_of_ones_own_is_used_on_both_sides() -> None:
    calls = []

    def doubled(logits: Tensor, labels: Tensor) -> Tensor:
        calls.append(len(labels))
        return 2 * nn.functional.cross_entropy(logits, labels)

    result = run(loss=doubled)
    assert calls
    assert result.weights_digest != run().weights_digest


def test_parts_given_beside_a_recipe_replace_those_of_it() -> None:
    result = fedoptima.simulate(
        RECIPES / "demo_digits.toml", method="fl", fleet="uniform", seed=5, dry=True, epochs=1
    )
    assert (result.method, result.seed) == ("fl", 5)
    assert set(result.usage) == {"server", *(f"device-{n}" for n in range(1, 9))}


def test_training_given_beside_a_recipe_changes_single_keys_of_it(tmp_path: Path) -> None:
    lower = {"device": {"learning_rate": 0.02}}
    demo = RECIPES / "demo_digits.toml"
    fedoptima.simulate(demo, training=lower, dry=True, epochs=1, out=tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    found = config["recipe"]["training"]
    assert (found["batch_size"], found["schedule"]["kind"]) == (20, "cosine")
    assert found["device"]["nesterov"]
    assert found["device"]["learning_rate"] == 0.02
    assert found["server"]["learning_rate"] == 0.05


def test_training_given_beside_a_recipe_comes_before_what_a_method_has_of_its_own() -> None:
    own = {"fl": {"training": {"iterations": 3, "batch_size": 7}}}
    demo = fedoptima.load_recipe(RECIPES / "demo_digits.toml", ["method.name=fl"])
    recipe = validate(Recipe, {**demo.model_dump(exclude_unset=True), "methods": own}, "demo")
    whole, _ = recipe_from(recipe, "simulate()", training={"batch_size": 5})
    assert (whole.training.batch_size, whole.training.iterations) == (5, 3)


def test_more_classes_than_the_labels_show_can_be_said() -> None:
    inputs, labels = data()
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 5))
    with pytest.raises(ConfigError, match=r"\(2, 5\).*3 classes.*'classification', 'size': 5}$"):
        run(model=model, train=(inputs, labels))
    assert run(model=model, data={"classes": 5}, epochs=1.0).weights["3.bias"].shape == (5,)


def test_options_that_data_given_in_python_does_not_have_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"data={'vocabulary': .*classes"):
        run(data={"vocabulary": 5})
    with pytest.raises(ConfigError, match=r"data={'classes': 0}: must"):
        run(data={"classes": 0})


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 3)), "does not take this data"),
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 2)), r"returns \(2, 2\).*3 classes"),
        (nn.Sequential(nn.Conv2d(1, 3, 1), nn.Conv2d(3, 3, 1)), r"returns \(2, 3, 4, 4\)"),
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), "cannot be split"),
        (network().requires_grad_(False), r"parameters are frozen.*\.requires_grad_\(True\)$"),
        (nn.Sequential(nn.Flatten(), nn.Softmax(1)), "it has no parameters"),
    ],
)
def test_a_model_that_cannot_be_trained_on_the_data_is_refused(
    model: nn.Module, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(model=model, split=None)


@pytest.mark.parametrize(
    ("method", "frozen", "who"),
    [("fedoptima", 1, "the server has"), ("splitfed", 0, "devices have")],
)
def test_a_side_of_which_all_is_frozen_is_refused_before_anything_is_trained(
    method: str, frozen: int, who: str
) -> None:
    model = network()
    for place, block in enumerate(model):
        block.requires_grad_((place > 0) != frozen)
    with pytest.raises(ConfigError, match=f"{who} nothing to train.*unfreeze some"):
        run(model=model, method=method, split={"at": 1})


def test_a_model_that_cannot_be_split_is_trained_whole() -> None:
    torch.manual_seed(0)
    assert run(model=nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), method="fl", split=None).rounds


def test_a_name_the_auxiliary_network_needs_is_refused() -> None:
    class Clashing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.aux, self.head = nn.Linear(16, 8), nn.Linear(8, 3)

        def forward(self, images: Tensor) -> Tensor:
            return self.head(torch.relu(self.aux(images.flatten(1))))

    with pytest.raises(ConfigError, match=r"'aux\.weight'.*rename"):
        run(model=Clashing(), split=None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": None}, "stop: is missing"),
        ({"stop": {}, "epochs": None}, "nothing stops this run"),
        ({"method": "fedoptimal"}, "did you mean 'fedoptima'"),
        ({"method": {"name": "fedoptima", "activation_cup": 3}}, "did you mean 'activation_cap'"),
        ({"method": {"name": "fedoptima", "activation_cap": 0}}, "method={'activation_cap': 0}: "),
        (
            {"method": {"name": "fedoptima", "activation_cap": "x"}},
            "method={'activation_cap': 'x'}: ",
        ),
        ({"method": {"name": "fedoptima", "max_delay": -1}}, "method={'max_delay': -1}"),
        ({"method": {"name": "fedoptima", "alpha": 2.0}}, r"method={'alpha': 2\.0}"),
        (
            {"method": {"name": "fedoptima", "credit_timeout": 0.0}},
            "method={'credit_timeout': 0.0}",
        ),
        ({"method": {"name": "fl", "on_leave": "weep"}}, "method={'on_leave': 'weep'}.*'drop'"),
        ({"epochs": 1, "stop": {"epochs": 2}}, r"epochs=1 and stop={'epochs': 2} are both given"),
        (
            {"fleet": {"server": {"gflops": 1.0}, "devices": {"name": "a", "gflops": 1.0}}},
            r"simulate\(fleet={'devices': ...}\): must be a list; put what is there in brackets",
        ),
        ({"device": "gpu"}, "device='gpu': use 'cpu'"),
        ({"device": "meta"}, "device='meta': use 'cpu'"),
        ({"device": "cuda:99"}, "device='cuda:99': torch sees .* GPU here; use 'cpu'"),
        ({"fleet": "testbed_c"}, "testbed_a, .*testbed_b, .*uniform"),
        ({"train": None}, "needs train"),
        ({"test": None}, "no test data"),
        ({"data": "digits"}, "not both"),
        ({"split": {"at": 3}}, "split={'at': 3}: must be from 1 to 2"),
        (
            {"training": {"device": {"nesterov": True, "momentum": 0.0}}},
            r"simulate\(training={'device': .*}\): nest",
        ),
    ],
)
def test_a_mistake_is_named_with_its_value_and_the_way_out(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(**changes)


def test_more_devices_than_samples_is_an_empty_partition() -> None:
    inputs, labels = data(2)
    with pytest.raises(ConfigError, match="empty partition: 2 training samples for 3 devices"):
        run(train=(inputs, labels), data={"classes": 3, "partition": {"kind": "iid"}})


@pytest.mark.parametrize("stop", [{"target_accuracy": 0.9}, {"patience": 3.0}])
def test_a_dry_run_that_only_an_accuracy_could_stop_is_refused(stop: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"dry run has no accuracy.*epochs=10"):
        run(stop=stop, epochs=None, training={"batch_size": 8}, dry=True)


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        ({"rounds": 2}, "2 rounds done"),
        ({"epochs": 1.5}, "1.5 epochs done"),
        ({"hours": 0.1 / 3600}, "seconds are over"),
        ({"target_accuracy": 0.4}, "reached the target 0.4"),
        ({"patience": 2.0}, "has not improved"),
    ],
)
def test_each_rule_stops_a_run_and_is_its_reason(stop: dict[str, float], reason: str) -> None:
    training = {"batch_size": 8, "device": {"learning_rate": 0.05}}
    assert reason in run(stop=stop, epochs=None, training=training).reason


def test_an_observer_sees_the_run_and_its_end() -> None:
    seen = []
    result = run(observer=lambda watch: seen.append((watch.simulation.now, watch.course.epochs)))
    assert seen[-1][0] > 0
    assert seen[-1][1] == result.curve[-1].epochs


def test_an_experiment_can_be_prepared_and_planned_without_being_run() -> None:
    table = {
        "model": {"name": "custom"},
        "data": {"name": "custom"},
        "fleet": FLEET,
        "stop": {"epochs": 1},
    }
    given = Given(network(), as_dataset(data(), data()))
    before = torch.get_rng_state()
    experiment = prepare(validate(Recipe, table, "test"), given)
    plan = experiment.plan()
    assert 1 <= plan.split < len(plan.blocks)
    assert sum(len(rows) for rows in experiment.shares.values()) == 96
    assert len(np.unique(np.concatenate(list(experiment.shares.values())))) == 96
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_documented_is_exported() -> None:
    for name in ("simulate", "resume", "load_recipe", "Result"):
        assert name in fedoptima.__all__
        assert getattr(fedoptima, name)
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        _ = fedoptima.simulat  # type: ignore[attr-defined]
