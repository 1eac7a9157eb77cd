"""All methods over real sockets: the same cores, the same maths, the same weights.

Shares of unequal size, batch-norm, momentum and a falling learning rate: whatever depends on the
order of batches or merges, on versions or on progress, shows in the weights.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fedoptima.config.schema import Recipe
from fedoptima.core.effects import Effect, Send
from fedoptima.core.events import Event, JobDone
from fedoptima.core.jobs import Rebase, SkipStep
from fedoptima.core.messages import GlobalModel
from fedoptima.core.server import ServerCore
from fedoptima.core.types import Payload, PayloadId
from fedoptima.experiments.result import Result
from fedoptima.experiments.server_setup import prepare_server
from fedoptima.experiments.simulation import simulate
from fedoptima.methods.registry import COMPARED
from fedoptima.runtime.security.certificates import make_authority, make_device
from fedoptima.trace.reader import read_trace
from fedoptima.verification.core_replay import replay_trace
from fedoptima.verification.replay import replay
from tests.runtime.folders import device_of, server_of
from tests.support.network import NAMES, Server, start_device, tiny_recipe

SHARES = {"fast": range(0, 40), "middle": range(40, 71), "slow": range(71, 84)}
OPTIONS: dict[str, dict[str, object]] = {"pipar": {"micro_batches": 3}}
ENCRYPTED = ("fedoptima", "pipar")
IN_STEP = ("fl", "splitfed", "pipar")  # all wait for all: the order of merges is no accident


@dataclass(frozen=True)
class Run:
    recipe: Recipe
    result: Result
    folder: Path
    farewells: Sequence[object]


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """One run of each method, made when it is first asked for."""
    made: dict[str, Run] = {}

    def find(method: str) -> Run:
        if method not in made:
            made[method] = play(method, tmp_path_factory.mktemp(method))
        return made[method]

    return find


def play(method: str, tmp: Path, **options: object) -> Run:
    recipe = uneven_recipe(method, tmp, **options)
    certs = tmp / "certs"
    if method in ENCRYPTED:
        make_authority(certs)
        for name in NAMES:
            make_device(certs, name)
    with Server(recipe, tmp / "run", tls=server_of(certs) if certs.exists() else None) as server:
        devices = [
            start_device(
                name, server.address, tmp, tls=device_of(certs, name) if certs.exists() else None
            )
            for name in NAMES
        ]
        result = server.result()
        return Run(recipe, result, tmp / "run", [device.answer() for device in devices])


def uneven_recipe(method: str, tmp: Path, **options: object) -> Recipe:
    shares = tmp / "shares.json"
    shares.write_text(json.dumps({name: list(rows) for name, rows in SHARES.items()}))
    return tiny_recipe(
        method=OPTIONS.get(method, {}) | {"name": method} | options,
        data={"name": "tests.e2e.tiny:data", "partition": {"kind": "file", "file": str(shares)}},
        training={
            "batch_size": 8,
            "device": {"learning_rate": 0.05},
            "server": {"learning_rate": 0.03, "momentum": 0.8},
            "schedule": {"kind": "cosine", "warmup": 0.1},
        },
    )


@pytest.mark.parametrize("method", COMPARED)
def test_a_run_over_the_network_is_the_cores_doing_bit_for_bit(
    method: str, run_of: Callable[[str], Run]
) -> None:
    is_the_cores_doing(run_of(method))


def test_so_is_one_of_lean_devices_that_do_not_wait_for_merges(tmp_path: Path) -> None:
    run = play("fedoptima", tmp_path, overlap=True, train_every=2)
    is_the_cores_doing(run)
    jobs = {
        type(e.job)
        for r in read_trace(run.folder / "trace.jsonl.gz")
        for e in [r.event]
        if isinstance(e, JobDone)
    }
    assert jobs >= {SkipStep, Rebase}


def is_the_cores_doing(run: Run) -> None:
    assert run.result.reason == "2 epochs done"
    assert list(run.farewells) == ["2 epochs done"] * 3
    again = replay(run.folder, weights=True, allow_modules=["tests"])
    assert again.difference is None, again.difference
    assert set(again.nodes) == {"server", *NAMES}
    assert again.weights is not None
    assert again.weights.executed == run.result.weights_digest, again.weights.problem


@pytest.mark.parametrize("method", IN_STEP)
def test_the_network_gives_the_same_weights_as_the_simulation(
    method: str, run_of: Callable[[str], Run]
) -> None:
    run = run_of(method)
    simulated = simulate(run.recipe)
    assert run.result.weights_digest == simulated.weights_digest
    assert run.result.rounds == simulated.rounds >= 2


@pytest.mark.parametrize("method", ["fl", "splitfed"])
def test_so_it_does_with_updates_that_are_added_up_as_they_come(
    method: str, tmp_path: Path
) -> None:
    """In whatever order that is."""
    run = play(method, tmp_path, on_leave="keep")
    is_the_cores_doing(run)
    assert run.result.weights_digest == simulate(run.recipe).weights_digest


def test_another_seed_gives_other_weights(run_of: Callable[[str], Run]) -> None:
    """Or the comparison above would mean nothing."""
    run = run_of("fl")
    other = simulate(run.recipe.model_copy(update={"seed": run.recipe.seed + 1}))
    assert run.result.weights_digest != other.weights_digest


# ---- can the proof fail? ---------------------------------------------------------------------


class SendsAnotherPayload(ServerCore):
    """Answers everything as it should, but with the model before the last."""

    def handle(self, event: Event, now: float) -> list[Effect]:
        return [_with_another_payload(effect) for effect in super().handle(event, now)]


def _with_another_payload(effect: Effect) -> Effect:
    match effect:
        case Send(message=GlobalModel(version, data=data) as model) if version:
            other = Payload(PayloadId("server/0/1"), data.nbytes)
            return replace(effect, message=replace(model, data=other))
    return effect


@pytest.mark.parametrize("method", COMPARED)
def test_a_core_that_sends_another_payload_is_found_out(
    method: str, run_of: Callable[[str], Run]
) -> None:
    run = run_of(method)
    setup = prepare_server(run.recipe)
    core = setup.core()
    changed = SendsAnotherPayload.__new__(SendsAnotherPayload)
    vars(changed).update(vars(core))
    verdict = replay_trace(read_trace(run.folder / "trace.jsonl.gz"), lambda: changed)
    assert verdict.difference is not None
    assert "message.data.id" in verdict.difference.what
    assert verdict.difference.got == "'server/0/1'"


def test_a_device_that_records_another_result_is_found_out(
    run_of: Callable[[str], Run], tmp_path: Path
) -> None:
    run = run_of("fl")
    folder = _copied(run.folder, tmp_path / "run")
    _rewrite(folder / "devices" / "slow.jsonl.gz", '"ModelUpdate",0,8,', '"ModelUpdate",0,9,')
    again = replay(folder)
    assert again.difference is not None
    assert again.difference.record.node == "slow"


def test_a_merge_that_was_not_the_one_recorded_gives_other_weights(
    run_of: Callable[[str], Run], tmp_path: Path
) -> None:
    """The cores cannot tell which tensors a payload's id stood for; the engines can."""
    run = run_of("fl")
    folder = _copied(run.folder, tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    config["recipe"]["training"]["device"]["momentum"] = 0.5
    del config["sha256"]  # the change is meant
    (folder / "config.json").write_text(json.dumps(config))
    again = replay(folder, weights=True, allow_modules=["tests"])
    assert again.difference is None
    assert again.weights is not None
    assert not again.identical


def _copied(folder: Path, to: Path) -> Path:
    to.mkdir()
    (to / "devices").mkdir()
    for file in (*folder.glob("*.*"), *folder.glob("devices/*")):
        (to / file.relative_to(folder)).write_bytes(file.read_bytes())
    return to


def _rewrite(trace: Path, old: str, new: str) -> None:
    text = gzip.decompress(trace.read_bytes()).decode()
    assert old in text
    trace.write_bytes(gzip.compress(text.replace(old, new).encode()))
