"""Settings of the whole test run: one thread, and how hard hypothesis looks."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Before anybody imports torch: results and timings of tests must not depend on the machine's cores.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

# Loops over whole simulated runs: how long one takes says nothing.
_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile(
    "default",
    max_examples=60,
    deadline=None,
    print_blob=True,
    suppress_health_check=_SLOW_IS_FINE,
)
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True)
# By hand, after a change of the core: pytest tests/sim tests/core --hypothesis-profile thorough
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=3000)
settings.load_profile("ci" if os.environ.get("CI") else "default")
