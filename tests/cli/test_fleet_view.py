"""One table of all nodes on a terminal, plain lines elsewhere; log lines never go through it."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from fedoptima.analysis.idle_time import Usage
from fedoptima.analysis.quality import Quality
from fedoptima.cli.logs import DeviceErrors, attached, log_to_console, log_to_file
from fedoptima.cli.views.fleet_state import DeviceRow, FleetState
from fedoptima.cli.views.fleet_table import MOST_ROWS, picture
from fedoptima.cli.views.fleet_view import FleetLines, FleetTable, FleetView, fleet_view
from fedoptima.display.progress import RunProgress
from fedoptima.experiments.server_run import ServerWatch
from tests.support.network import NAMES, Server, start_device, tiny_recipe, until

LOG = logging.getLogger("fedoptima.server")

COURSE = RunProgress(83.0, "4.3 of 10 epochs", 0.43, Quality("accuracy", 0.961, 0.97), 0.9, 0.8)
ROW = DeviceRow("pi-1", "training", True, "6.06", "2,058", 40, 1, 203, Usage(3.0, 1.0, 0.0), 0.4)
STATE = FleetState(
    course=COURSE,
    version=41,
    used=812,
    what_is_used="batches",
    server="training",
    usage=Usage(9.0, 1.0, 0.0),
    waiting="",
    devices=(ROW,),
    errors=(),
)


def drawn(state: FleetState, *, height: int = 50, width: int = 100) -> list[str]:
    console = Console(file=StringIO(), width=width, force_terminal=False)
    console.print(picture("tiny: fedoptima", state, height=height))
    assert isinstance(console.file, StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def fleet_of(count: int, **changes: object) -> FleetState:
    rows = tuple(replace(ROW, name=f"pi-{n}", **changes) for n in range(count))  # type: ignore[arg-type]
    return replace(STATE, devices=rows)


# ---- the table -----------------------------------------------------------------------------------


def test_every_figure_of_a_device_is_in_its_row() -> None:
    lines = drawn(STATE)
    assert lines[0] == "tiny: fedoptima"
    assert "4.3 of 10 epochs, 1 min 23 s, accuracy 96.1 % (best 97.0 %)" in lines[1]
    assert lines[3].split() == [
        *("state", "GFLOP/s", "up", "Mbit/s", "version", "behind", "batches"),
        *("busy", "idle", "seen"),
    ]
    assert lines[4].split() == ["server", "training", "41", "812", "90.0", "%", "10.0", "%"]
    assert lines[5].split() == [
        *("pi-1", "training", "6.06", "2,058", "40", "1", "203"),
        *("75.0", "%", "25.0", "%", "0", "s"),
    ]


def test_what_is_not_known_yet_is_left_empty() -> None:
    new = DeviceRow("pi-2", "getting ready", True, "", "", None, None, 0, None, 0.0)
    assert drawn(replace(STATE, devices=(new,)))[5].split() == (
        ["pi-2", "getting", "ready", "0", "0", "s"]
    )


def test_the_widest_table_fits_100_columns() -> None:
    wide = DeviceRow(
        *("a-device-with-a-name-that-is-far-too-long", "away for 99 min", False),
        *("1,234", "12,345", 123_456, 12_345, 12_345_678, Usage(1.0, 0.0, 0.0), 86_400.0),
    )
    errors = ("pi-1: " + "all went wrong, " * 20,)
    lines = drawn(replace(STATE, devices=(wide,), errors=errors), width=100)
    assert max(map(len, lines)) <= 100
    assert len(lines) == 7  # nothing is wrapped
    for whole in ("away for 99 min", "12,345", "12345678", "100.0 %", "24 h"):
        assert whole in lines[5]


def test_devices_beyond_some_are_summed_up() -> None:
    lines = drawn(fleet_of(200), height=100)
    assert len([line for line in lines if line.startswith("pi-")]) == MOST_ROWS
    assert lines[-1].split()[:5] == ["170", "more", "devices", "mostly", "training"]
    assert "34510" in lines[-1]  # batches
    assert "75.0 %" in lines[-1]


def test_the_table_is_never_higher_than_the_terminal() -> None:
    for height in (10, 12, 24):
        for count in (1, 3, 7, 40):
            state = replace(fleet_of(count), errors=("pi-1: it is gone",))
            assert len(drawn(state, height=height)) < height
    whole = drawn(fleet_of(7), height=13)
    assert len([line for line in whole if line.startswith("pi-")]) == 7


def test_before_the_training_it_says_who_is_waited_for() -> None:
    waiting = replace(STATE, waiting="1 of 4 devices here: pi-1; begins at the latest in 40 s")
    assert drawn(waiting)[1] == waiting.waiting
    assert waiting.line() == waiting.waiting


def test_errors_are_below_the_table() -> None:
    assert drawn(replace(STATE, errors=("pi-2: no\nmemory",)))[-1] == "pi-2: no memory"


def test_what_has_not_been_measured_yet_is_left_out() -> None:
    state = replace(STATE, course=replace(COURSE, quality=None))
    assert drawn(state)[1].endswith("4.3 of 10 epochs, 1 min 23 s")
    assert "4.3 of 10 epochs, busy: " in state.line()


# ---- lines ---------------------------------------------------------------------------------------


def test_a_line_names_those_who_are_not_here() -> None:
    assert STATE.line().endswith(
        "accuracy 96.1 % (best 97.0 %), busy: server 90.0 %, devices 80.0 %"
    )
    never_joined = replace(ROW, name="nobody", well=False, gflops="")
    gone = replace(STATE, devices=(replace(ROW, well=False), never_joined))
    assert gone.line().endswith("devices 80.0 %, not here: pi-1")


def test_long_lists_of_names_are_cut() -> None:
    away = [replace(ROW, name=str(number), well=False) for number in range(12)]
    state = replace(STATE, devices=tuple(away))
    assert state.line().endswith("not here: 0, 1, 2, 3, 4, 5, 6, 7 and 4 more")


def test_a_log_line_goes_above_the_table_and_into_the_file(tmp_path: Path) -> None:
    console = Console(file=StringIO(), width=100, force_terminal=True, color_system=None)
    with (
        log_to_console(console, logging.INFO),
        log_to_file(tmp_path / "logs" / "server.log"),
        FleetTable(console, "tiny") as view,
    ):
        view.reading("digits", 1, 2)
        LOG.warning("pi-1 left [early]")  # which is not markup
        LOG.debug("nobody acts on this")
    assert isinstance(console.file, StringIO)
    out = console.file.getvalue()
    assert "1 of 2" in out
    assert "\n" in out.partition(" pi-1 left [early]")[2][:2]
    assert "nobody" not in out
    kept = (tmp_path / "logs" / "server.log").read_text()
    assert kept.endswith("WARNING fedoptima.server: pi-1 left [early]\n")
    LOG.warning("nobody listens any more")
    assert console.file.getvalue() == out


def test_the_last_complaint_about_each_device_is_kept() -> None:
    logged = DeviceErrors()
    with attached(logged):
        LOG.warning("about nobody")
        LOG.info("good news", extra={"device": "pi-1"})
        LOG.warning("first", extra={"device": "pi-1"})
        LOG.error("second", extra={"device": "pi-2"})
        LOG.error("third", extra={"device": "pi-1"})
        assert list(logged.fresh().items()) == [("pi-2", "second"), ("pi-1", "third")]
        for number in range(1000):
            LOG.warning("spam", extra={"device": str(number)})
        assert len(logged.fresh()) == 100
        assert "999" in logged.fresh()


# ---- a real run ----------------------------------------------------------------------------------


class Observed(Server):
    """A server with onlookers."""

    state: FleetState | None = None
    views: tuple[FleetView, ...] = ()

    def _observe(self, watch: ServerWatch) -> None:
        self.state = FleetState.of(watch, {})
        for view in self.views:
            view.observe(watch)

    @property
    def line(self) -> str:
        return self.state.line() if self.state else ""


def test_a_real_run_is_seen_from_waiting_to_training(tmp_path: Path) -> None:
    recipe = tiny_recipe("fedoptima", stop={"epochs": 1000.0}, deploy={"patience": 50.0})
    with Observed(recipe, tmp_path / "run") as server:
        until(lambda: server.line == "0 of 3 devices here", "nobody is here")
        devices = [start_device(NAMES[0], server.address, tmp_path)]
        seen = until(lambda: "1 of 3" in server.line and server.line, "one is here")
        assert re.fullmatch(r"1 of 3 devices here: fast; begins at the latest in \d+ s", seen)
        table, lines = StringIO(), StringIO()
        screen = Console(file=table, width=100, height=30, force_terminal=True, color_system=None)
        with (
            FleetTable(screen, "tiny") as first,
            FleetLines(Console(file=lines, force_terminal=False), "tiny") as second,
        ):
            server.views = (first, second)
            devices += [start_device(name, server.address, tmp_path) for name in NAMES[1:]]

            def trained() -> FleetState | None:
                state = server.state
                done = state is not None and all(row.used and row.usage for row in state.devices)
                return state if done else None

            state = until(trained, "all of them have trained")
            until(lambda: "of 1000 epochs" in lines.getvalue(), "a line was printed")
            server.interrupt()
            for device in devices:
                assert device.answer() == "the server was stopped by its operator"
    assert [row.name for row in state.devices] == sorted(NAMES)
    assert state.what_is_used == "batches"
    assert state.used >= sum(row.used for row in state.devices) > 0
    for row in state.devices:
        assert row.well
        assert row.gflops
        assert row.behind is not None
        assert row.behind >= 0
    assert "of 1000 epochs" in server.line
    last_picture = table.getvalue().rpartition("GFLOP/s")[2]
    assert all(name in last_picture for name in (*NAMES, "server"))
    assert "training" in last_picture


def test_the_view_is_chosen_by_where_it_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, console = tiny_recipe(), Console(file=StringIO(), force_terminal=True)
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(fleet_view(console, recipe, tmp_path, quiet=False), FleetTable)
    assert type(fleet_view(console, recipe, tmp_path, quiet=True)) is FleetView
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(fleet_view(console, recipe, tmp_path, quiet=False), FleetLines)
    file = Console(file=StringIO(), force_terminal=False)
    assert isinstance(fleet_view(file, recipe, tmp_path, quiet=False), FleetLines)
