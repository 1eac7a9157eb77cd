"""pfl-research on a workload, in two processes that share the clients, as its guide advises.

The other process is started from here; both are set up through the environment before pfl is
loaded, which connects them.

python -m benchmarks.peers.pfl_research ASKED     (from benchmarks.sides)
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys


def main() -> None:
    if "PFL_WORKER_RANK" not in os.environ:
        ports = [_free_port(), _free_port()]
        os.environ["PFL_WORKER_ADDRESSES"] = ",".join(f"localhost:{port}" for port in ports)
        os.environ["PFL_PYTORCH_DEVICE"] = "cpu"
        again = [sys.executable, "-m", "benchmarks.peers.pfl_research", sys.argv[1]]
        subprocess.Popen(again, env={**os.environ, "PFL_WORKER_RANK": "1"})
        os.environ["PFL_WORKER_RANK"] = "0"

    from benchmarks.peers.pfl_training import train

    train()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return int(free.getsockname()[1])


if __name__ == "__main__":
    main()
