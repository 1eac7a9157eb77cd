from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedoptima.core.errors import ConfigError
from fedoptima.reproduction.catalogue import Catalogue, read_catalogue
from fedoptima.reproduction.planned import Choice, Planned, distinct, queue
from fedoptima.reproduction.records import MOST_POINTS, Records, read_records, thinned
from fedoptima.reproduction.work import RUNS, work
from fedoptima.trace.run_folder import RunFiles
from tests.reproduction.paper import session, worked_off


def runs(catalogue: Catalogue, *names: str, seeds: int = 1) -> list[Planned]:
    planned = queue(catalogue, catalogue.chosen(list(names)), Choice(seeds=seeds))
    return distinct(list(planned.values()))


def test_finished_runs_are_recorded_in_a_few_files_and_never_repeated(
    catalogue: Catalogue, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    worked_off(catalogue, ["idle", "traffic"], out)
    assert sorted(path.name for path in out.glob("*.json")) == ["small-dry.json", "tiny-dry.json"]
    assert not list((out / RUNS).iterdir())  # their folders are not needed any more
    before = read_records(out)
    worked_off(catalogue, ["idle", "traffic", "cap"], out)
    after = read_records(out)
    assert after.items() > before.items()
    (record,) = (r for r in before.values() if (r.workload, r.method) == ("tiny", "fl"))
    assert record.figures["epochs"] == pytest.approx(2, abs=0.2)
    assert record.made.command == "fedoptima reproduce"
    assert record.made.commit == "abc"
    assert "torch" in record.made.versions


def test_a_run_that_ended_before_it_was_recorded_is_not_repeated(
    catalogue: Catalogue, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    (run,) = runs(catalogue, "traffic")
    work([run], Records(out), replace(session(), keep=True))
    (out / "tiny-dry.json").unlink()  # as if it had been killed in between
    trace = RunFiles(out / RUNS / run.folder).trace
    written = trace.stat().st_mtime_ns
    work([run], Records(out), replace(session(), keep=True))
    assert trace.stat().st_mtime_ns == written
    assert read_records(out)[run.id].wall_seconds is None


def test_stopped_runs_go_on_with_the_next_call(catalogue: Catalogue, tmp_path: Path) -> None:
    out = tmp_path / "out"
    wanted = runs(catalogue, "idle")
    asked = iter([False] * 2 + [True] * 100)
    outcome = work(wanted, Records(out), session(interrupted=lambda: next(asked)))
    assert 0 < outcome.left < len(wanted)
    assert outcome.failed == []
    first = read_records(out)
    worked_off(catalogue, ["idle"], out)
    assert read_records(out).items() >= first.items()


def test_folders_of_several_machines_are_merged(catalogue: Catalogue, tmp_path: Path) -> None:
    worked_off(catalogue, ["traffic"], tmp_path / "one")
    worked_off(catalogue, ["cap"], tmp_path / "two")
    records = Records(tmp_path / "all")
    assert [records.merge(tmp_path / name) for name in ("one", "two", "one")] == [1, 3, 0]
    assert len(read_records(tmp_path / "all")) == 4
    outcome = work(runs(catalogue, "traffic", "cap"), records, session())
    assert not (tmp_path / "all" / RUNS).exists()  # nothing was left to do
    assert outcome.left == 0
    with pytest.raises(ConfigError, match="no such folder"):
        records.merge(tmp_path / "three")


def test_runs_that_no_figure_needs_any_more_are_forgotten(
    catalogue: Catalogue, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    worked_off(catalogue, ["idle"], out)
    needed = {run.id for run in runs(catalogue, "idle") if run.workload == "tiny"}
    assert Records(out).keep(needed) == 3
    assert read_records(out).keys() == needed
    assert sorted(path.name for path in out.glob("*.json")) == ["tiny-dry.json"]
    assert Records(out).keep(needed) == 0


def test_a_failed_run_is_reported_and_the_others_go_on(folder: Path, tmp_path: Path) -> None:
    text = (folder / "figures.toml").read_text()
    (folder / "figures.toml").write_text(text.replace('"classifier"]', '"nowhere:build"]'))
    catalogue = read_catalogue(folder)
    outcome = work(runs(catalogue, "auxiliary"), Records(tmp_path / "out"), session())
    (failure,) = outcome.failed
    assert failure.startswith("tiny: fedoptima, auxiliary=nowhere:build (seed 1): ")
    assert outcome.left == 1


def test_a_damaged_file_of_results_says_what_to_do(catalogue: Catalogue, tmp_path: Path) -> None:
    worked_off(catalogue, ["traffic"], tmp_path)
    (tmp_path / "tiny-dry.json").write_text("{")
    with pytest.raises(ConfigError, match="remove it, and its runs are made again"):
        Records(tmp_path)


def test_a_plan_is_timed_and_its_candidates_are_kept(catalogue: Catalogue, tmp_path: Path) -> None:
    records = worked_off(catalogue, ["split"], tmp_path / "out")
    (run,) = runs(catalogue, "split")
    record = records.get(run.id)
    assert record is not None
    assert record.figures["startup"]
    assert record.split >= 1
    assert [name for name, _, _ in record.candidates][record.split - 1] == record.split_after


def test_a_dry_run_without_churn_is_the_same_with_every_seed(
    catalogue: Catalogue, tmp_path: Path
) -> None:
    records = worked_off(catalogue, ["cap"], tmp_path / "out", seeds=2)
    found = [records.get(run.id) for run in runs(catalogue, "cap", seeds=2)]
    by_label: dict[str, set[str]] = {}
    for record in found:
        assert record is not None
        by_label.setdefault(record.case.label, set()).add(record.trace_digest)
    assert {len(digests) for digests in by_label.values()} == {1}


def test_a_thinned_curve_keeps_its_ends_and_the_times_near_its_best() -> None:
    curve = [(float(t), t / 10, 0.9 * (1 - 0.97**t)) for t in range(400)]
    few = thinned(curve)
    assert len(few) < 250
    assert (few[0][0], few[-1][0]) == (0.0, 399.0)
    high = [(s, e, a) for s, e, a in curve if a > 0.9 * (1 - 0.97**399) - 0.03][:20]
    assert {round(s) for s, _, _ in high} <= {round(s) for s, _, _ in few}
    assert thinned(curve[:MOST_POINTS]) == [(s, e, round(a, 5)) for s, e, a in curve[:MOST_POINTS]]
