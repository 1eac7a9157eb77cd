"""A hostile device against a live server with two honest ones: nothing of it stays.

Server and honest devices are processes with the real commands. The honest devices train, then wait
for their data until all attempts (`tests.e2e.hostile`) are over, and come to the end of the run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fedoptima.runtime.address import Address
from fedoptima.runtime.security.certificates import make_authority, make_device
from fedoptima.verification.replay import replay
from tests.e2e.hostile import BEFORE_THE_PLAN, DURING_THE_RUN, EVE, MALLORY, TRUDY, Attack, Field
from tests.runtime.folders import device_of, server_of
from tests.support.network import until
from tests.support.processes import Fleet, fleet

HONEST, HOSTILE = ("pi-1", "pi-2"), (MALLORY, EVE, TRUDY)
SAMPLES = 96
FREE = SAMPLES + 48 * 10  # draws of a device: all at load, then some local epochs
EPOCHS = 4
USUAL = 0.95  # accuracy; a model that learnt nothing has 0.33
ATTEMPTS = 80  # connections of the attacker that must have come about
LONGEST_LINE = 1000  # characters of the log
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True)
class Outcome:
    accuracy: float
    reason: str
    log: str
    run: Path


def played(
    folder: Path,
    before: Iterable[Attack],
    during: Iterable[Attack],
    *options: str,
    devices: int = 3,
) -> Outcome:
    """``devices``: with which the run begins; one of the hostile ones comes before the plan."""
    certs = folder / "certs"
    make_authority(certs)
    for name in (*HONEST, *HOSTILE):
        make_device(certs, name)
    gate = folder / "gate"
    with fleet(folder, "fedoptima") as made:
        server = made.start_server(
            *("--devices", str(devices), "--dashboard", "0", *_files(server_of(certs))),
            *("--set", "data.name=tests.e2e.patient:data", "--set", f"data.gate={gate}"),
            *("--set", f"data.free={FREE}", "--set", f"stop.epochs={EPOCHS}"),
            *("--set", "training.evaluate_every=2"),
            *options,
        )
        field = Field(made.address, _page(server.said), certs)
        with field.stays:
            for attack in before:
                attack(field)
            assert server.alive, server.said
            honest = [made.start_device(name, *_files(device_of(certs, name))) for name in HONEST]
            until(lambda: _updates(made) >= 2, "the honest devices train")
            for attack in during:
                attack(field)
                assert server.alive, f"{attack.__name__} ended the server:\n{server.said}"
            gate.touch()
            code = server.ends()
        assert code == 0, server.said
        assert [device.ends() for device in honest] == [0, 0], [d.said for d in honest]
        summary = json.loads((made.run / "summary.json").read_text())
        return Outcome(summary["accuracy"], summary["reason"], server.said, made.run)


def _files(tls: object) -> tuple[str, ...]:
    return ("--tls-ca", str(tls.ca), "--tls-cert", str(tls.cert), "--tls-key", str(tls.key))  # type: ignore[attr-defined]


def _page(said: str) -> Address:
    found = re.search(r"http://([\w.]+):(\d+)", said)
    assert found, said
    return Address(found[1], int(found[2]))


def _updates(made: Fleet) -> int:
    """Of the devices that have trained a round."""
    return sum(
        any("ModelUpdate" in record.to_line() for record in made.records_of(name))
        for name in HONEST
    )


def test_after_all_attacks_an_honest_run_ends_with_its_usual_accuracy(tmp_path: Path) -> None:
    outcome = played(tmp_path, BEFORE_THE_PLAN, DURING_THE_RUN)
    assert outcome.reason == f"{EPOCHS} epochs done"
    assert outcome.accuracy >= USUAL
    assert outcome.log.count(f"{MALLORY} connected") >= ATTEMPTS, "and it has been tried"
    assert not any(f"{name} is dropped" in outcome.log for name in HONEST)
    assert not CONTROL.search(outcome.log), "text of a device reached the log as it was"
    assert max(map(len, outcome.log.splitlines())) <= LONGEST_LINE
    assert "src/fedoptima" not in outcome.log, "an error of ours, with a traceback"
    assert_verified(outcome.run)


def assert_verified(run: Path) -> None:
    """Whatever a liar's own records say, those of the server and the honest devices hold."""
    whole = replay(run)
    assert whole.difference is None or whole.difference.record.node in HOSTILE
    for name in HOSTILE:
        for file in run.glob(f"devices/{name}.*"):
            file.unlink()
    honest = replay(run)
    assert honest.difference is None, honest.difference
    assert {"server", *HONEST} <= set(honest.nodes)
