from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.cli.conftest import Call
from tests.experiments.test_planned_form import SPEEDS


def with_a_small_server_side() -> nn.Module:
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
    return nn.Sequential(nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU()), head)


@torch.library.custom_op("fedoptima_tests::halved", mutates_args=())
def halved(values: Tensor) -> Tensor:
    return values / 2


class Scaled(nn.Module):
    """Nothing in it is a product, and one operation is not torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8, 8))

    def forward(self, images: Tensor) -> Tensor:
        return halved(images).detach() * self.scale


def without_products_at_first() -> nn.Module:
    return nn.Sequential(Scaled(), nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))


def test_the_plan_shows_every_split_and_marks_the_chosen_one(call: Call, recipe: Path) -> None:
    answer = call("plan", recipe)
    assert answer.code == 0
    rows = [line.split() for line in answer.out.splitlines() if "block" in line]
    table = [row for row in rows if "fast-1" in row or "slow" in row]
    assert [row[-9] for row in table] == ["1", "2", "3", "4"]
    assert [row for row in table if row[0] == ">"] == [table[0]]
    for figure in (
        "auxiliary default",
        "server memory",
        "samples/s",
        "batches/s",
        "bottleneck:",
        "busy",
    ):
        assert figure in answer.words
    assert max(map(len, answer.out.splitlines())) <= 80


def test_the_users_split_is_the_marked_one(call: Call, recipe: Path) -> None:
    answer = call("plan", recipe, "--set", "split.at=3")
    assert "> 3 block3" in answer.words
    assert "split after block3: 3 of 5 blocks on the device" in answer.words


def test_fl_has_no_split_and_says_what_the_whole_model_costs(call: Call, recipe: Path) -> None:
    answer = call("plan", recipe, "--method", "fl")
    assert "Nothing is split: every device trains the whole model." in answer.words
    assert "90,250" in answer.words
    assert "every round waits for the slowest device, slow" in answer.words
    assert "server memory" not in answer.words


def test_without_an_auxiliary_network_devices_wait(call: Call, recipe: Path) -> None:
    answer = call("plan", recipe, "--set", "method.auxiliary=none")
    assert "auxiliary none: devices wait for the server's gradients" in answer.words
    assert "model + K x activations" in answer.words


def test_a_small_cap_is_named_as_the_bottleneck(call: Call, recipe: Path) -> None:
    answer = call("plan", recipe, "--set", "method.activation_cap=1")
    assert "bottleneck: omega" in answer.words


def test_a_credit_that_expires_too_soon_is_warned_of(call: Call, recipe: Path) -> None:
    answer = call("plan", recipe, "--set", "method.credit_timeout=0.1")
    assert answer.code == 0
    assert "warning: slow answers a turn-on after" in answer.complaint
    assert "raise method.credit_timeout" in answer.complaint


def test_an_auxiliary_network_larger_than_the_server_side_is_warned_of(
    call: Call, recipe: Path
) -> None:
    answer = call("plan", recipe, "--set", "split.at=4")
    assert answer.code == 0
    assert "more than the whole server side (1,290)" in answer.complaint
    assert 'choose a smaller split.at or method.auxiliary = "classifier"' in answer.complaint


def test_pooled_features_are_mentioned(call: Call, recipe: Path) -> None:
    model = "model.name=tests.cli.test_plan:with_a_small_server_side"
    answer = call("plan", recipe, "--set", model, "--set", "split.at=1")
    assert answer.code == 0, answer.complaint
    assert "features are averaged over 4 x 4 before its dense layer" in answer.words


def test_the_plan_says_how_the_work_was_counted(call: Call, recipe: Path) -> None:
    assert "work FLOPs as counted in a run of each block" in call("plan", recipe).words


@pytest.mark.parametrize("method", ["fedoptima", "fl"])
def test_the_plan_names_what_could_not_be_counted(call: Call, recipe: Path, method: str) -> None:
    model = "model.name=tests.cli.test_plan:without_products_at_first"
    answer = call("plan", recipe, "--method", method, "--set", model)
    assert answer.code == 0, answer.complaint
    formula = "0: one per element written by aten::mul and fedoptima_tests::halved"
    assert formula in answer.words
    assert "the work of fedoptima_tests::halved is not known" in answer.complaint
    assert "register_flop_formula" in answer.complaint


def test_the_plan_as_json_has_both_objectives(call: Call, recipe: Path) -> None:
    plan = json.loads(call("plan", recipe, "--json").out)
    assert set(plan["candidates"]) == {"paper", "measured"}
    assert plan["plan"]["split"] == 1
    assert set(plan["devices"]) == {"slow", "fast-1", "fast-2"}
    memory = plan["memory"]
    assert memory["shared"] == memory["model"] + memory["cap"] * memory["activation"]
    assert memory["copies"] == 4 * memory["model"] + 3 * memory["activation"]


def test_a_plan_needs_no_data_on_disk(
    call: Call, recipe: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FEDOPTIMA_DATA", str(tmp_path / "nothing"))
    answer = call("plan", recipe, "--set", "data.name=cifar10", "--set", "data.validation=0.1")
    assert answer.code == 0
    assert "'cifar10' is not on disk" in answer.complaint
    assert "bottleneck:" in answer.words


@pytest.mark.no_cover  # forty dry runs; tests/experiments/test_planned_form.py goes the same way
def test_the_plan_of_fedoptima_plus_shows_who_takes_more_blocks_and_for_how_long(
    call: Call, recipe: Path
) -> None:
    devices = ", ".join(
        f'{{name = "{name}", gflops = {gflops}, mbps = 50.0}}' for name, gflops in SPEEDS.items()
    )
    fleet = f"fleet={{server = {{gflops = 1.2}}, devices = [{devices}]}}"
    answer = call(
        *("plan", recipe, "--method", "fedoptima_plus", "--set", "model={name = 'vgg5'}"),
        *("--set", "training.batch_size=20", "--set", "split.per_device=true", "--set", fleet),
    )
    assert answer.code == 0
    assert "> split 1 for 2, 2 for 1, " in answer.words
    assert "as many blocks as it manages in 0." in answer.words
