"""Flower's simulation (Ray) on a workload: FedAvg, one core for a client, two clients at a time.

The images are loaded once by each Ray worker, as Flower's guides advise, when it is first asked,
and that is before the clock starts. The clock runs from the first round to the evaluated model.

python -m benchmarks.peers.flower ASKED     (from benchmarks.sides)
"""

from __future__ import annotations

import os


def main() -> None:
    # Nothing is to be sent anywhere from a measurement.
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

    from flwr.simulation import run_simulation

    from benchmarks.peers.flower_apps import client_app, server_app
    from benchmarks.sides import Asked

    asked = Asked.read()
    run_simulation(
        server_app(asked),
        client_app(asked),
        num_supernodes=asked.workload.clients,
        backend_config={
            "init_args": {"num_cpus": asked.workers, "log_to_driver": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    main()
