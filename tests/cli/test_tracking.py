from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import pytest

pytest.importorskip("prometheus_client", reason="needs pip install 'fedoptima[track]'")

from prometheus_client.parser import text_string_to_metric_families

from fedoptima.analysis.idle_time import Usage
from fedoptima.analysis.live_accounts import LiveAccounts
from fedoptima.cli.tracking_options import RunTracking, TrackingOptions
from fedoptima.config.load import load_recipe
from fedoptima.experiments.simulated_run import SimulationWatch
from fedoptima.experiments.simulation import simulate
from fedoptima.trace.description import Mode
from fedoptima.tracking.prometheus import Prometheus
from tests.cli.conftest import Call
from tests.support.descriptions import described
from tests.tracking.moments import records_of, subject_of

COMMANDS = ("simulate", "run", "server")


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Any:
    return lambda: capsys.readouterr().err


def opened(recipe: Path, mode: Mode) -> RunTracking:
    options = TrackingOptions(metrics_port=0)
    where = Path("runs/a")
    return options.open(load_recipe(recipe), where, mode=mode, resumed=False, quiet=False)


def scrape(said: str) -> dict[tuple[str, ...], float]:
    """Every sample by its name and the values of its labels, sorted by label."""
    (address,) = re.findall(r"http://127\.0\.0\.1:\d+/metrics", said)
    with urlopen(address, timeout=120) as answer:
        text = answer.read().decode()
    return {
        (sample.name, *(sample.labels[label] for label in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def assert_same_usage(found: dict[tuple[str, ...], float], usage: dict[str, Usage]) -> None:
    assert len(usage) > 1
    for node, use in usage.items():
        assert found["fedoptima_node_busy_seconds_total", node] == use.busy
        assert found["fedoptima_node_idle_seconds", node, "1"] == use.idle_1
        assert found["fedoptima_node_idle_seconds", node, "2"] == use.idle_2


def test_a_simulation_is_scraped_while_it_goes_on(recipe: Path, said: Any) -> None:
    looks: list[str] = []

    def view(watch: SimulationWatch) -> None:
        if not looks:  # the first moment is taken at once
            looks.append(said())
            found = scrape(looks[0])
            assert_same_usage(found, dict(watch.usage.usage()))
            assert found["fedoptima_activation_cap_batches",] == 32
            assert found["fedoptima_device_up", "slow"] == 1

    with opened(recipe, Mode.SIMULATED) as tracked:
        tracked.finish(simulate(recipe, dry=True, observer=tracked.simulation_observer(view)))
    assert looks


def test_a_real_run_is_scraped_as_its_live_accounts_have_it(recipe: Path, said: Any) -> None:
    live = LiveAccounts()
    live.catch_up(records_of("fl"))
    members = {"slow": None, "fast": None}
    watch: Any = SimpleNamespace(
        live=live,
        node=SimpleNamespace(machine=SimpleNamespace(members=members)),
        description=described(network=True, cap=7),
    )
    seen: list[object] = []
    with opened(recipe, Mode.NETWORK) as tracked:
        observe = tracked.server_observer(seen.append)
        assert observe is not None
        observe(watch)
        found = scrape(said())
    assert seen == [watch]
    assert_same_usage(found, dict(live.accounts.usage.usage()))
    up = {key[1]: value for key, value in found.items() if key[0] == "fedoptima_device_up"}
    assert up == {"slow": 1, "fast": 1, "middle": 0}
    assert found["fedoptima_activation_cap_batches",] == 7


def test_who_wants_nothing_tracked_costs_nothing(recipe: Path) -> None:
    def view(watch: Any) -> None:
        raise AssertionError

    options = TrackingOptions()
    with options.open(
        load_recipe(recipe), Path("a"), mode=Mode.NETWORK, resumed=False, quiet=True
    ) as tracked:
        assert tracked.server_observer(None) is None
        assert tracked.server_observer(view) is view
        assert tracked.simulation_observer(view) is view


def test_the_command_says_where_the_metrics_are(call: Call, recipe: Path) -> None:
    answer = call("simulate", recipe, "--dry", "--metrics-port", "0")
    assert answer.code == 0
    assert re.match(r"metrics on http://127\.0\.0\.1:\d+/metrics\n", answer.err)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_port_that_is_taken_ends_it_before_anything_is_written(
    command: str, call: Call, recipe: Path, tmp_path: Path
) -> None:
    page = Prometheus(subject_of(tmp_path), 0)
    try:
        answer = call(command, recipe, "--metrics-port", str(page.port))
    finally:
        page.close()
    assert answer.code == 2
    assert f"--metrics-port {page.port}: cannot listen" in answer.complaint
    assert "choose another port" in answer.complaint
    assert not Path("runs").exists()


def test_what_was_opened_is_closed_when_the_next_cannot_be(
    call: Call, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = Prometheus(subject_of(tmp_path), 0)
    free.close()
    monkeypatch.setitem(sys.modules, "mlflow", None)
    answer = call("simulate", recipe, "--metrics-port", str(free.port), "--mlflow", "http://x")
    assert answer.code == 2
    Prometheus(subject_of(tmp_path), free.port).close()


@pytest.mark.parametrize(
    ("option", "value", "package", "ours"),
    [
        ("--metrics-port", "0", "prometheus_client", "prometheus"),
        ("--tensorboard", "tb", "tensorboard", "tensorboard"),
        ("--mlflow", "http://127.0.0.1:9", "mlflow", "mlflow"),
    ],
)
def test_a_package_that_is_missing_is_named_with_the_way_to_get_it(
    option: str,
    value: str,
    package: str,
    ours: str,
    call: Call,
    recipe: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for loaded in (f"fedoptima.tracking.{ours}", "torch.utils.tensorboard"):
        monkeypatch.delitem(sys.modules, loaded, raising=False)
    answer = call("simulate", recipe, option, value)
    assert answer.code == 2
    named = package.replace("_", "-")
    assert f"{option} needs {named}: pip install 'fedoptima[track]'" in answer.complaint
    assert not Path("runs").exists()
