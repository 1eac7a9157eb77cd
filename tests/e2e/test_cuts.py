"""Devices with cuts of their own, over the network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from fedoptima.config.schema import Recipe
from fedoptima.core.effects import Note, NoteKind, Send
from fedoptima.core.messages import Assignment
from fedoptima.preprocess.job_costs import Rates
from fedoptima.runtime.address import Address
from fedoptima.runtime.device.client import Pace
from fedoptima.trace.reader import read_trace
from fedoptima.trace.record import Record
from fedoptima.verification.replay import replay
from tests.experiments.test_cuts import CUTS, FLEET
from tests.experiments.test_planned_form import SEVERAL, SPEEDS, digits
from tests.support.network import Server, Work, start_device, tiny_recipe, until

TRACE = "trace.jsonl.gz"
SLOW = Pace(up=125e3)


def recipe(**parts: object) -> Recipe:
    return tiny_recipe(
        model={"name": "tests.experiments.test_cuts:model"},
        fleet=FLEET,
        split={"per_device": True},
        **parts,
    )


def join_all(server: Address, folder: Path) -> list[Work]:
    return [
        start_device(
            *(device["name"], server, folder),
            rates=Rates(4 * device["gflops"] * 1e9),  # as in the recipe's fleet, in less time
            pace=Pace(up=4 * device["mbps"] * 1e6 / 8),
        )
        for device in FLEET["devices"]
    ]


def assigned(records: Sequence[Record]) -> list[tuple[str, int]]:
    """Which device was given which cut, in this order."""
    return [
        (effect.to, effect.message.program.cut)
        for record in records
        for effect in record.effects
        if isinstance(effect, Send) and isinstance(effect.message, Assignment)
    ]


@pytest.mark.slow
def test_a_run_with_three_cuts_is_stopped_resumed_and_proven(tmp_path: Path) -> None:
    options = {"name": "fedoptima", "reuse": True}
    told = recipe(method=options, stop={"epochs": 1.5}, deploy={"checkpoint_merges": 1})
    with Server(told, tmp_path / "run", gateways=1) as first:
        devices = join_all(first.address, tmp_path / "states")
        until(lambda: first.watch and first.watch.node.machine.version >= 2, "two merges")
        first.interrupt()
        for device in devices:
            device.answer()
    with Server(told, tmp_path / "run", resume=True, gateways=0) as second:
        join_all(second.address, tmp_path / "states")
        second.result()
    records = list(read_trace(tmp_path / "run" / TRACE))
    assert dict(assigned(records)[:3]) == CUTS
    found = replay(tmp_path / "run", weights=True, allow_modules=["tests"])
    assert found.difference is None


def test_a_device_that_is_slower_than_it_claims_is_planned_for_again(tmp_path: Path) -> None:
    told = recipe(
        training={"batch_size": 8, "iterations": 1},
        stop={"epochs": 6.0},
        method={"name": "fedoptima"},
    )
    with Server(told, tmp_path / "run") as server:
        start_device(
            *("wired", server.address, tmp_path / "states"), rates=Rates(4e6), pace=Pace(up=1e6)
        )
        start_device("mobile", server.address, tmp_path / "states", rates=Rates(2e7), pace=SLOW)
        start_device(
            *("wifi", server.address, tmp_path / "states"),
            rates=Rates(3e6),
            claims=2e7,
            pace=SLOW,
        )
        server.result()
    records = list(read_trace(tmp_path / "run" / TRACE))
    assert [cut for device, cut in assigned(records) if device == "wifi"][:2] == [2, 1]
    notes = [e for r in records for e in r.effects if isinstance(e, Note)]
    assert any(n.kind == NoteKind.REPLANNED and n.about == "wifi" for n in notes)
    assert replay(tmp_path / "run", allow_modules=["tests"]).difference is None


@pytest.mark.no_cover  # dozens of dry runs; the tests above go the same way over the network
def test_a_server_gives_devices_the_cuts_that_fedoptima_plus_has_planned(tmp_path: Path) -> None:
    with Server(digits(), tmp_path / "run") as server:
        for name, gflops in SPEEDS.items():
            start_device(
                *(name, server.address, tmp_path / "states"),
                rates=Rates(gflops * 1e9),
                pace=Pace(up=50e6 / 8),
            )
        server.result()
    assert dict(assigned(list(read_trace(tmp_path / "run" / TRACE)))[:3]) == SEVERAL
    assert replay(tmp_path / "run", weights=True).difference is None
