"""Run folders that fedoptima 0.1.0 has left: read, or refused with its version named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import fedoptima
from fedoptima import ConfigError
from fedoptima.trace.description import Mode, read_config
from fedoptima.trace.reader import read_description
from tests.cli.conftest import Call

STORED = Path(__file__).parents[1] / "stored" / "0_1_0"


def test_a_finished_run_of_0_1_0_can_be_read(call: Call) -> None:
    said = call("trace", str(STORED / "finished"))
    summary = json.loads((STORED / "finished" / "summary.json").read_text())
    assert said.code == 0
    assert f"{summary['events']} records of 3 nodes: {summary['seconds']:.1f} s" in said.out


def test_the_result_of_a_finished_run_of_0_1_0_is_printed(call: Call) -> None:
    said = call("simulate", "--resume", str(STORED / "finished"), "--json")
    kept = json.loads((STORED / "finished" / "summary.json").read_text())
    told = json.loads(said.out)
    assert {key: told[key] for key in ("seconds", "rounds", "accuracy", "trace_digest")} == {
        key: kept[key] for key in ("seconds", "rounds", "accuracy", "trace_digest")
    }


def test_a_finished_run_of_0_1_0_is_not_replayed_by_a_server_that_decides_otherwise(
    call: Call,
) -> None:
    said = call("replay", str(STORED / "finished"))
    assert said.code == 2
    assert "a trace of fedoptima 0.1.0" in said.complaint
    assert "replay it with that version" in said.complaint


def test_the_facts_of_a_run_of_0_1_0_are_derived_from_its_recipe() -> None:
    known = read_description(STORED / "finished" / "trace.jsonl.gz")
    assert known == read_config(STORED / "finished" / "config.json")
    assert (known.mode, known.devices, known.starts_with) == (Mode.SIMULATED, 2, 2)
    assert (known.method, known.activation_cap, known.dry) == ("fedoptima", 32, False)
    assert known.versions["fedoptima"] == "0.1.0"


def test_a_finished_run_of_0_1_0_is_reported(call: Call, tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="plotly is an extra")
    said = call(
        "report", str(STORED / "finished"), "--out", str(tmp_path / "r.html"), "--no-advice"
    )
    assert said.code == 0
    assert "stored_0_1_0: fedoptima, seed 1" in (tmp_path / "r.html").read_text()


def test_an_interrupted_run_of_0_1_0_is_refused_with_its_version(tmp_path: Path) -> None:
    run = shutil.copytree(STORED / "interrupted", tmp_path / "run")
    with pytest.raises(ConfigError, match=r"schema 1 \(fedoptima 0\.1\.0 wrote 1\)"):
        fedoptima.resume(run)
