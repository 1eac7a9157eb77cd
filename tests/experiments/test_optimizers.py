"""Optimisers and schedules of the user's own, by name and as functions, for each side apart."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import fedoptima
from fedoptima.core.errors import ConfigError
from tests.experiments.runs import arguments, run

HERE = "tests.experiments.test_optimizers"


class Signs(torch.optim.Optimizer):
    """Steps of one length, with a count of its own."""

    def __init__(self, params: Iterable[Tensor], lr: float, scale: float = 1.0) -> None:
        super().__init__(params, {"lr": lr, "scale": scale})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["steps"] = state.get("steps", 0) + 1
                if parameter.grad is not None:
                    step = group["lr"] * group["scale"] / state["steps"] ** 0.5
                    parameter -= step * parameter.grad.sign()


def signs(parameters: list[Tensor], lr: float, scale: float = 1.0) -> torch.optim.Optimizer:
    return Signs(parameters, lr, scale)


def half_way(share: float) -> float:
    return 1.0 if share < 0.5 else 0.1


def training(**changes: object) -> dict[str, object]:
    return {"batch_size": 8, **changes}


def test_any_class_of_torch_is_named_for_each_side() -> None:
    device = {"name": "RMSprop", "learning_rate": 0.001, "options": {"alpha": 0.9}}
    server = {"name": "NAdam", "learning_rate": 0.002, "weight_decay": 0.01}
    result = run(training=training(device=device, server=server), epochs=2)
    given = training(
        device={**device, "name": torch.optim.RMSprop}, server={**server, "name": torch.optim.NAdam}
    )
    assert run(training=given, epochs=2).weights_digest == result.weights_digest
    assert run(training=training(device=device), epochs=2).weights_digest != result.weights_digest


def test_momentum_beside_an_optimiser_that_takes_none_is_refused() -> None:
    given = training(server={"name": "adam", "momentum": 0.9})
    with pytest.raises(ConfigError, match=r"momentum.*: is read for name = 'sgd' only"):
        run(training=given)


def test_a_function_and_its_name_are_the_same() -> None:
    own = {"name": f"{HERE}:signs", "learning_rate": 0.01, "options": {"scale": 0.5}}
    named = run(training=training(device=own, schedule={"kind": f"{HERE}:half_way"}), epochs=2)
    given = run(
        training=training(device={**own, "name": signs}, schedule=half_way), epochs=2, workers=2
    )
    assert named.weights_digest == given.weights_digest
    assert named.trace_digest == given.trace_digest


def test_sides_have_schedules_of_their_own() -> None:
    falling = {"schedule": lambda share: 1 - share}
    both = run(training=training(device=falling, server=falling), epochs=2)
    shared = run(training=training(schedule=lambda share: 1 - share), epochs=2)
    assert both.weights_digest == shared.weights_digest
    one = run(training=training(device=falling), epochs=2)
    assert one.weights_digest != both.weights_digest


def test_a_run_with_an_optimiser_of_its_own_is_resumed(tmp_path: Path) -> None:
    own = training(device={"name": lambda parameters, lr: Signs(parameters, lr)})
    whole = run(training=own)
    stopped = iter([False] * 60)
    with pytest.raises(fedoptima.Interrupted):
        run(training=own, out=tmp_path / "run", interrupted=lambda: next(stopped, True))
    again = {name: arguments()[name] for name in ("model", "train", "test")}
    with pytest.raises(ConfigError, match=r"training\.device\.name: was given in Python"):
        fedoptima.resume(tmp_path / "run", **again)  # type: ignore[arg-type]
    resumed = fedoptima.resume(tmp_path / "run", **again, training=own)  # type: ignore[arg-type]
    assert resumed.weights_digest == whole.weights_digest


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": {"name": "rmsprob"}}, r"training=\{'device': \{'name': 'rmsprob'\}\}: unknown"),
        ({"device": {"name": "LBFGS"}}, "needs more than a gradient for each step"),
        ({"server": {"name": "Muon"}}, "optimiser 'Muon': cannot be made"),
        ({"device": {"name": f"{HERE}:half_way"}}, "cannot be made with the parameters and lr"),
        ({"device": {"name": lambda parameters, lr: None}}, "returned NoneType"),
        (
            {"device": {"name": torch.optim.SGD([torch.zeros(1)], 0.1)}},
            "is an optimiser that is made already, for one model; give its class, SGD",
        ),
        ({"device": torch.optim.Adam}, r"an optimiser its 'name': \{'name': Adam, 'learning_rate'"),
        ({"device": {"options": {"warmth": 1}}}, "optimiser 'sgd': .*warmth"),
        ({"schedule": {"kind": "sine"}}, "must be 'constant', 'cosine', 'linear' or 'step', or"),
        ({"schedule": {"kind": "step", "steps": [100.0]}}, "steps: are shares of the budget"),
        ({"schedule": lambda share: -share}, r"training=\{'schedule': .*: gives -0\.5 at 0\.5"),
        ({"schedule": lambda: 1.0}, r"training=\{'schedule': .*: fails at 0"),
        ({"schedule": {"kind": half_way, "warmup": 0.1}}, "warmup and floor do not belong"),
    ],
)
def test_a_mistake_gets_a_sentence(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(training=training(**changes), epochs=1)


def test_a_schedule_of_a_side_needs_a_budget_too() -> None:
    falling = {"schedule": {"kind": "linear"}}
    with pytest.raises(ConfigError, match="follows the share of the budget"):
        run(training=training(server=falling), epochs=None, stop={"target_accuracy": 0.9})
