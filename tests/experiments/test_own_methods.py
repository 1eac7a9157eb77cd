"""Methods in a user's own package: found by name, stored, resumed, compared, replayed, reported."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedoptima import ConfigError, Interrupted, compare, replay, report, resume, simulate
from fedoptima.comparison.folder import read_about
from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.methods import AsyncStaleness, Method, Offer
from fedoptima.methods.fedasync import fedasync
from fedoptima.methods.fl import fl
from tests.experiments.runs import arguments, run
from tests.support.network import NAMES, Server, start_device, tiny_recipe

PACKAGE = '''
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from fedoptima.methods import AsyncStaleness, DelayLimit, Method, OpenFlow
from fedoptima.methods.fedasync import fedasync
from fedoptima.methods.fl import fl


def proximal(loss, weights, received, *, mu):
    return loss + mu / 2 * sum((weights[name] - received[name]).pow(2).sum() for name in weights)


def fedprox(devices, *, mu: float = 0.1):
    return replace(fl(devices), name="fedprox", local_loss=partial(proximal, mu=mu))


class Last(NamedTuple):
    device: str
    weight: float


@dataclass(frozen=True, slots=True)
class Half:
    """A rule with a class of its own."""

    share: float = 0.5

    def weight(self, staleness):
        return self.share


class Counting(AsyncStaleness):
    def __init__(self, delay, rule):
        super().__init__(delay, rule)
        self.counts = {}
        self.last = None

    def weight(self, offer):
        self.counts[offer.device] = self.counts.get(offer.device, 0) + 1
        self.last = Last(offer.device, super().weight(offer) / self.counts[offer.device])
        return self.last.weight


def counting(devices, share: float = 0.5):
    policy = partial(Counting, DelayLimit(8 * devices), Half(share))
    return replace(fedasync(devices), name="counting", aggregation=policy)
'''
FEDPROX, COUNTING = "own_methods.rules:fedprox", "own_methods.rules:counting"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """own_methods, and where it would leave a mark when it is imported."""
    folder, mark = tmp_path / "code" / "own_methods", tmp_path / "imported"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    (folder / "rules.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path / "code")
    yield mark
    forget()


def forget() -> None:
    """As in a process that has not imported the package."""
    for name in [name for name in sys.modules if name.startswith("own_methods")]:
        del sys.modules[name]


def interrupted_run(folder: Path, after: int = 40, **changes: object) -> None:
    left = iter(range(after))
    with pytest.raises(Interrupted):
        run(out=folder, interrupted=lambda: next(left, None) is None, **changes)


GIVEN = {name: arguments()[name] for name in ("model", "train", "test")}


# ---- through everything ------------------------------------------------------------------------


@pytest.mark.parametrize("name", [FEDPROX, COUNTING])
def test_a_run_is_stored_resumed_replayed_and_reported(
    package: Path, tmp_path: Path, name: str
) -> None:
    whole, folder = run(method=name), tmp_path / "run"
    interrupted_run(folder, method=name)
    forget()
    again = resume(folder, **GIVEN, allow_modules=["own_methods"])  # type: ignore[arg-type]
    assert again.trace_digest == whole.trace_digest
    assert again.weights_digest == whole.weights_digest
    forget()
    verdict = replay(folder, weights=True, **GIVEN, allow_modules=["own_methods"])  # type: ignore[arg-type]
    assert verdict.identical


def test_nothing_is_imported_because_a_runs_files_name_it(package: Path, tmp_path: Path) -> None:
    folder, left = tmp_path / "run", iter(range(40))
    with pytest.raises(Interrupted):
        simulate(tiny_recipe(COUNTING), out=folder, interrupted=lambda: next(left, None) is None)
    forget()
    package.unlink()
    made = report(folder, out=tmp_path / "report.html")
    assert made.views[0].method == "counting"
    assert made.advice is not None
    assert "--allow-module own_methods" in made.advice.reason
    for read in (replay, resume):
        with pytest.raises(ConfigError, match=r"allow_modules=\['own_methods'\]"):
            read(folder, allow_modules=["tests"])  # type: ignore[operator]
    assert not package.exists()


def test_methods_are_compared_with_ours(package: Path, tmp_path: Path) -> None:
    table = tiny_recipe("fl", stop={"rounds": 2})
    names = [FEDPROX, "fl", COUNTING]
    options = {"mu": 5.0, f"{COUNTING}.share": 0.25}
    found = compare(table, methods=names, options=options, jobs=1, out=tmp_path / "runs")
    assert [run.method for run in found.runs] == names
    assert not any(run.error for run in found.runs)
    forget()
    package.unlink()
    assert list(read_about(tmp_path / "runs").cases)  # which reads files, and imports nothing
    made = report(tmp_path / "runs", out=tmp_path / "report.html", advice=False)
    assert [view.method for view in made.views] == ["fedprox", "fl", "counting"]
    assert not package.exists()


def test_devices_over_the_network_load_the_hook_by_its_name(package: Path, tmp_path: Path) -> None:
    recipe = tiny_recipe(FEDPROX, stop={"rounds": 2})
    allowed = ("tests", "own_methods")
    with Server(recipe, tmp_path / "run") as server:
        devices = [start_device(name, server.address, tmp_path, allowed=allowed) for name in NAMES]
        result = server.result()
        for device in devices:
            device.answer()
    assert result.rounds == 2
    simulated = simulate(recipe)
    assert simulated.weights_digest == result.weights_digest
    assert simulate(recipe, method="fl").weights_digest != result.weights_digest
    verdict = replay(tmp_path / "run", weights=True, allow_modules=["own_methods", "tests"])
    assert verdict.identical


@pytest.mark.parametrize("name", ["fedasync", "oafl"])
def test_the_proximal_term_and_the_reset_of_our_own_methods_work_over_the_network(
    name: str, tmp_path: Path
) -> None:
    table = tiny_recipe(name, stop={"rounds": 2})
    options = {"name": name, "rho": 0.5, "reset_optimizer": True}
    recipe = validate(Recipe, {**table.model_dump(), "method": options}, "test")
    with Server(recipe, tmp_path / "run") as server:
        devices = [start_device(device, server.address, tmp_path) for device in NAMES]
        result = server.result()
        for device in devices:
            device.answer()
    assert result.rounds == 2
    assert replay(tmp_path / "run", weights=True, allow_modules=["tests"]).identical


@pytest.mark.parametrize("name", ["fedasync", "oafl"])
def test_a_run_with_a_proximal_term_is_resumed_as_if_it_had_never_stopped(
    name: str, tmp_path: Path
) -> None:
    method = {"name": name, "rho": 0.5, "reset_optimizer": True}
    whole = run(method=method)
    interrupted_run(tmp_path / "run", method=method)
    again = resume(tmp_path / "run", **GIVEN)  # type: ignore[arg-type]
    assert again.weights_digest == whole.weights_digest != run(method=name).weights_digest


# ---- in Python ---------------------------------------------------------------------------------


def pulled(loss: Tensor, weights: dict[str, Tensor], received: dict[str, Tensor]) -> Tensor:
    return loss + sum((weights[name] - received[name]).pow(2).sum() for name in weights)


class Fixed(AsyncStaleness):
    def weight(self, offer: Offer) -> float:
        return 0.5


def fixed(devices: int, *, delay: int = 24) -> Method:
    return replace(fedasync(devices), name="fixed", aggregation=partial(Fixed, delay))


def test_a_function_that_can_be_imported_is_named_in_the_recipe(tmp_path: Path) -> None:
    here = f"{__name__}:fixed"
    given = run(method={"name": fixed, "delay": 9}, out=tmp_path / "run")
    assert given.trace_digest == run(method={"name": here, "delay": 9}).trace_digest
    assert replay(tmp_path / "run", allow_modules=[__name__]).identical
    assert replay(tmp_path / "run", method=fixed).identical


def test_a_function_that_cannot_be_imported_has_to_be_given_again(tmp_path: Path) -> None:
    def mine(devices: int) -> Method:
        class Local(AsyncStaleness):
            def weight(self, offer: Offer) -> float:
                return 0.25

        return replace(fedasync(devices), aggregation=partial(Local, 24))

    whole, folder = run(method=mine), tmp_path / "run"
    interrupted_run(folder, method=mine)
    with pytest.raises(ConfigError, match=r"'mine': unknown.*has to be given again"):
        resume(folder, **GIVEN)  # type: ignore[arg-type]
    again = resume(folder, method=mine, **GIVEN)  # type: ignore[arg-type]
    assert again.trace_digest == whole.trace_digest
    assert replay(folder, method=mine).identical


@pytest.mark.parametrize("name", ["fl", "splitfed", "fedoptima", "fedbuff"])
def test_the_hook_changes_what_every_program_learns(name: str) -> None:
    from fedoptima.methods.registry import METHODS

    def changed(devices: int, hook: object = None) -> Method:
        return replace(METHODS[name](devices), local_loss=hook)

    plain = run(method=name, epochs=1.0)
    hooks = {
        "same": lambda loss, weights, received: loss,
        "pulled": pulled,
    }
    results = {
        key: run(method=lambda devices, hook=hook: changed(devices, hook), epochs=1.0)
        for key, hook in hooks.items()
    }
    assert results["same"].weights_digest == plain.weights_digest
    assert results["pulled"].weights_digest != plain.weights_digest
    assert results["pulled"].trace_digest != ""


def test_the_hook_is_computed_alike_in_worker_processes() -> None:
    def method(devices: int) -> Method:
        return replace(fl(devices), local_loss=pulled)

    one, two = (run(method=method, workers=workers) for workers in (1, 2))
    assert one.weights_digest == two.weights_digest
    assert one.weights_digest != run(method="fl").weights_digest


def test_weights_that_layers_share_are_given_once() -> None:
    seen: list[set[str]] = []

    def look(loss: Tensor, weights: dict[str, Tensor], received: dict[str, Tensor]) -> Tensor:
        seen.append(set(weights))
        assert weights.keys() == received.keys()
        return loss

    layer = torch.nn.Linear(16, 16)
    model = torch.nn.Sequential(
        torch.nn.Flatten(), layer, torch.nn.ReLU(), layer, torch.nn.Linear(16, 3)
    )
    run(model=model, method=lambda devices: replace(fl(devices), local_loss=look), epochs=1.0)
    assert seen[0] == {"1.weight", "1.bias", "4.weight", "4.bias"}


# ---- mistakes ----------------------------------------------------------------------------------


def test_a_builder_that_makes_something_else_is_refused() -> None:
    with pytest.raises(ConfigError, match="Method, and returned a str"):
        run(method=lambda devices: "fl")


def made_already(devices: int) -> Method:
    base = fl(devices)
    return replace(base, aggregation=base.aggregation())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (lambda devices, *, mu: fl(devices), "method={'mu': ...}: is missing; set it, or give it"),
        (lambda: fl(1), "method=custom: is not a method: it must take the number of devices"),
        (fl(3), "method: a Method (fl) is given; give the function that makes it of the number of"),
        (
            lambda devices: replace(fl(devices), aggregation=AsyncStaleness),
            "its aggregation is made without arguments, which fails (missing a required",
        ),
        (made_already, "its aggregation is a Barrier that is made already, and each server needs"),
    ],
)
def test_what_is_no_method_is_told_the_way_out(method: object, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        run(method=method)
    assert words in str(error.value)


def test_a_hook_that_fails_is_told_with_its_line_and_the_names_of_the_weights() -> None:
    def wrong(loss: Tensor, weights: dict[str, Tensor], received: dict[str, Tensor]) -> Tensor:
        return loss + weights["head"].sum()

    with pytest.raises(
        Exception, match=r"fails: KeyError: 'head' \(.*test_own_methods.py, line"
    ) as e:
        run(method=lambda devices: replace(fl(devices), local_loss=wrong))
    assert "weights and received are by name: " in str(e.value)


def test_a_hook_that_returns_a_loss_per_sample_is_refused() -> None:
    def wrong(loss: Tensor, weights: object, received: object) -> Tensor:
        return torch.stack([loss, loss])

    with pytest.raises(Exception, match=r"local_loss returned shape \(2,\)"):
        run(method=lambda devices: replace(fl(devices), local_loss=wrong))


def test_a_policy_that_no_checkpoint_can_hold_is_refused_before_the_run(tmp_path: Path) -> None:
    class Open(AsyncStaleness):
        def __init__(self, delay: int) -> None:
            super().__init__(delay)
            self.seen = {"a set"}

    def build(devices: int) -> Method:
        return replace(fedasync(devices), aggregation=partial(Open, 3))

    with pytest.raises(ConfigError, match=r"builtins.set cannot be stored in a checkpoint"):
        run(method=build, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
