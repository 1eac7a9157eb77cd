"""A page for Prometheus, on this machine only. Names, units and numbers are `report.metrics`'.

Scrapes come in a thread of their own, while the run goes on: they are answered from the latest
moment, which the run's thread puts here about every second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from socketserver import ThreadingMixIn
from threading import Thread
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from fedoptima.analysis import metrics as measured
from fedoptima.analysis.metrics import Moment, distributions, metrics
from fedoptima.core.errors import ConfigError
from fedoptima.core.hosts import names_this_machine
from fedoptima.tracking.tracker import Ending, Subject

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

HOST = "127.0.0.1"


class RunCollector:
    """The families of one run, as of the latest moment."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self.moment: Moment | None = None

    def collect(self) -> Iterator[Metric]:
        recipe = self._subject.recipe
        build = dict(self._subject.versions)
        yield InfoMetricFamily("fedoptima_build", "Versions that the run runs with.", value=build)
        about = {
            "name": recipe.name,
            "method": recipe.method.name,
            "model": recipe.model.name,
            "data": recipe.data.name,
            "seed": str(recipe.seed),
            "clock": self._subject.mode.clock,
        }
        yield InfoMetricFamily("fedoptima_run", "What is run.", value=about)
        moment = self.moment  # read once: another one may come meanwhile
        if moment is not None:
            yield from map(_family, metrics(moment))
            yield from map(_histogram, distributions(moment))


def _family(metric: measured.Metric) -> Metric:
    family: CounterMetricFamily | GaugeMetricFamily
    if metric.name.endswith("_total"):
        family = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
    else:
        family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in metric.values.items():
        family.add_metric(labels, value)
    return family


def _histogram(found: measured.Distribution) -> Metric:
    names = [*map(str, found.bounds), "+Inf"]
    buckets = list(zip(names, map(float, accumulate(found.counts)), strict=True))
    return HistogramMetricFamily(found.name, found.help, buckets=buckets, sum_value=found.total)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Handler(WSGIRequestHandler):
    timeout = 10.0  # seconds for a request to come

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a scrape is no news."""


def _for_this_machine(app: WSGIApplication) -> WSGIApplication:
    """As the page does: only for who means this machine, not for another site's script."""

    def guarded(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if not names_this_machine(environ.get("HTTP_HOST", "")):
            start_response("421 Misdirected Request", [("Content-Type", "text/plain")])
            return [b"Not a name of this machine.\n"]
        return app(environ, start_response)

    return guarded


class Prometheus:
    def __init__(self, subject: Subject, port: int) -> None:
        """Listens at once. Port 0: any that is free; ``port`` says which."""
        self._collector = RunCollector(subject)
        registry = CollectorRegistry()
        registry.register(self._collector)
        try:
            self._server = make_server(
                HOST, port, _for_this_machine(make_wsgi_app(registry)), _Server, _Handler
            )
        except OSError as error:
            raise ConfigError(
                f"--metrics-port {port}: cannot listen on {HOST}:{port} ({error.strerror}); "
                "choose another port, or 0 for any that is free"
            ) from error
        self.port = self._server.server_port
        self._thread = Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.port}/metrics"

    def observe(self, moment: Moment) -> None:
        self._collector.moment = moment

    def finish(self, ending: Ending) -> None:
        """Nothing to do: whoever scrapes has the last moment."""

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
