"""Settings of the whole test run: one thread, how hard hypothesis looks, what begins first."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

# Before anybody imports torch: results and timings of tests must not depend on the machine's cores.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

# A shell's background job ignores Ctrl-C, nohup's ignores a terminal that is closed, and so would
# every process that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Loops over whole simulated runs: how long one takes says nothing.
_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile(
    "default",
    max_examples=20,
    deadline=None,
    print_blob=True,
    suppress_health_check=_SLOW_IS_FINE,
)
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True)
# By `make slow`, and by hand after a change of the core: --hypothesis-profile thorough
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=3000)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# With several workers a file is one worker's: the longest begin first, or one of them would be left
# at the end.
_LONG = ("tests/e2e/test_killed_", "tests/documents/test_code_blocks.py")

# Not measured for coverage, with which the code of a simulation takes three times as long: these
# repeat what other tests run through, over many random fleets or through documents and tools.
_UNMEASURED = (
    "tests/documents/",
    "tests/fuzzing/test_mutants.py",
    "tests/golden/",
    "tests/sim/test_properties.py",
    "tests/test_benchmarks.py",
    "tests/tools/",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(_LONG))
    for item in items:
        if item.nodeid.startswith(_UNMEASURED):
            item.add_marker("no_cover")
