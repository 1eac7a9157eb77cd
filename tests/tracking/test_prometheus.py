from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from urllib.request import urlopen

import pytest

pytest.importorskip("prometheus_client", reason="needs pip install 'fedoptima[track]'")

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from fedoptima.analysis.metrics import Moment
from fedoptima.core.errors import ConfigError
from fedoptima.tracking.prometheus import Prometheus, RunCollector
from tests.tracking.moments import accounts_of, moment_of, records_of, subject_of

DOCS = Path(__file__).parents[2] / "docs"
UNITS = ("seconds", "bytes", "ratio", "batches", "versions")
NO_UNIT = {"fedoptima_loss", "fedoptima_build", "fedoptima_run"} | {
    "fedoptima_device_up",
    "fedoptima_disk_failing",
}


def text_of(moment: Moment | None) -> str:
    collector, registry = RunCollector(subject_of(Path("runs/a"))), CollectorRegistry()
    collector.moment = moment
    registry.register(collector)
    return generate_latest(registry).decode()


def families(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(found: dict[str, Metric], sample: str, **labels: str) -> float:
    (number,) = (
        one.value
        for family in found.values()
        for one in family.samples
        if one.name == sample and one.labels == labels
    )
    return number


@pytest.fixture(scope="module")
def text() -> str:
    return text_of(moment_of(records_of("fedoptima")))


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Prometheus]:
    page = Prometheus(subject_of(tmp_path), 0)
    yield page
    page.close()


def scrape(page: Prometheus) -> dict[str, Metric]:
    with urlopen(page.address, timeout=120) as answer:
        return families(answer.read().decode())


def test_the_page_can_be_parsed_and_every_metric_says_what_it_is(text: str) -> None:
    found = families(text)
    assert len(found) > 20
    for family in found.values():
        assert family.name.startswith("fedoptima_")
        assert family.documentation.endswith((".", "(omega)."))
        assert family.type in ("counter", "gauge", "histogram")
        assert family.samples


def test_gauges_and_histograms_name_their_unit(text: str) -> None:
    for family in families(text).values():
        name = family.name.removesuffix("_info")
        if family.type != "counter" and name not in NO_UNIT:
            assert name.endswith(UNITS), name


def test_histograms_add_up_and_end_with_all(text: str) -> None:
    histograms = [f for f in families(text).values() if f.type == "histogram"]
    assert len(histograms) == 2
    for family in histograms:
        buckets = [s for s in family.samples if s.name.endswith("_bucket")]
        counts = [s.value for s in buckets]
        assert counts == sorted(counts)
        assert buckets[-1].labels["le"] == "+Inf"
        assert buckets[-1].value == value({"": family}, f"{family.name}_count") > 0
        assert value({"": family}, f"{family.name}_sum") > 0


def test_labels_hold_nodes_and_a_few_words_only(text: str) -> None:
    allowed = {
        "node": {"server", "slow", "middle", "fast"},
        "device": {"slow", "middle", "fast"},
        "type": {"1", "2"},
        "side": {"device", "server"},
        "direction": {"up", "down"},
        "kind": {"activations", "gradients", "models", "control"},
    }
    for family in families(text).values():
        if family.name.endswith("_info"):
            continue
        for sample in family.samples:
            for label, found in sample.labels.items():
                assert label == "le" or found in allowed[label]


def test_a_scrape_shows_the_idle_seconds_of_the_latest_moment(page: Prometheus) -> None:
    records = records_of("fl")
    for end in (len(records) // 2, len(records)):
        accounts = accounts_of(records[:end])
        page.observe(Moment(accounts.summary(), (), None))
        found = scrape(page)
        for node, use in accounts.usage.usage().items():
            name = "fedoptima_node_idle_seconds"
            assert value(found, name, node=node, type="1") == use.idle_1
            assert value(found, name, node=node, type="2") == use.idle_2
            assert value(found, "fedoptima_node_busy_seconds_total", node=node) == use.busy


def test_before_anything_happened_the_page_says_what_runs(page: Prometheus) -> None:
    found = scrape(page)
    assert set(found) == {"fedoptima_build_info", "fedoptima_run_info"}
    (run,) = found["fedoptima_run_info"].samples
    assert run.labels["method"] == "fedoptima"
    assert (run.labels["seed"], run.labels["clock"]) == ("7", "virtual")


def test_a_port_that_is_taken_is_an_error_with_a_way_out(page: Prometheus, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"--metrics-port {page.port}: .*choose another port"):
        Prometheus(subject_of(tmp_path), page.port)


def test_the_port_is_free_again_when_the_page_is_closed(tmp_path: Path) -> None:
    first = Prometheus(subject_of(tmp_path), 0)
    first.close()
    Prometheus(subject_of(tmp_path), first.port).close()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:{port}", 200),
        ("localhost", 200),
        ("[::1]:9", 200),
        ("rebound.example:{port}", 421),
        ("10.0.0.1", 421),
        ("", 421),
    ],
)
def test_only_who_means_this_machine_is_answered(page: Prometheus, host: str, status: int) -> None:
    """Another site's script could have its own name point here."""
    connection = HTTPConnection("127.0.0.1", page.port, timeout=120)
    connection.request("GET", "/metrics", headers={"Host": host.format(port=page.port)})
    answer = connection.getresponse()
    assert answer.status == status
    assert (b"fedoptima_run_info" in answer.read()) == (status == 200)
    connection.close()


def test_it_listens_on_the_loopback_address_only(page: Prometheus) -> None:
    with socket.socket() as elsewhere:
        elsewhere.bind(("127.0.0.2", page.port))  # taken, if it listened everywhere
        elsewhere.listen()


def test_grafana_asks_only_for_what_there_is(text: str) -> None:
    dashboard = json.loads((DOCS / "grafana.json").read_text())
    asked = [t["expr"] for panel in dashboard["panels"] for t in panel["targets"]]
    asked += [variable["definition"] for variable in dashboard["templating"]["list"]]
    wanted = set(re.findall(r"fedoptima_\w+", " ".join(asked)))
    there = {s.name for family in families(text).values() for s in family.samples}
    assert len(wanted) > 12
    assert wanted <= there
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    assert dashboard["schemaVersion"] >= 38
    assert all(p["datasource"]["uid"] == "${DS_PROMETHEUS}" for p in dashboard["panels"])


def test_the_document_lists_exactly_what_there_is(text: str) -> None:
    table = re.findall(r"^\| `(fedoptima_\w+)`", (DOCS / "metrics.md").read_text(), re.MULTILINE)
    listed = re.findall(r"^# TYPE (\w+)", text, re.MULTILINE)
    assert sorted(table) == sorted(listed)
