"""What forked processes do in tests. Imports nothing that would be taken for preloaded."""

from __future__ import annotations

import os
import sys
import time


def say_what_is_loaded(_: None) -> None:
    wanted = ("torch", "torch._dynamo", "fedoptima.experiments.setup", "grpc")
    found = [name for name in wanted if name in sys.modules]
    own = ["session"] if os.getsid(0) == os.getpid() else []
    print(*found, *own, flush=True)


def wait_for_ever(_: None) -> None:
    print("waiting", flush=True)
    while True:
        time.sleep(1)
