"""Our side of a comparison: `fedoptima.simulate` with the workload's recipe.

The clock runs from the first event, when data and model are loaded and workers started, to the
result, which is the evaluated model. The time of the whole call is told as well, and the processor
time of all processes within the clock, which says more on a machine that others use.

python -m benchmarks.simulated ASKED     (from benchmarks.sides)
"""

from __future__ import annotations

import resource
import time
from pathlib import Path

import fedoptima
from benchmarks.sides import Asked
from benchmarks.workloads import recipe


def processor_seconds() -> float:
    """Of this process and of those that it has started and that have ended."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(own.ru_utime + own.ru_stime for own in used)


def main() -> None:
    asked = Asked.read()
    first_event: list[float] = []

    def between_events() -> bool:
        if not first_event:
            first_event.extend((time.perf_counter(), processor_seconds()))
        return False

    called = time.perf_counter()
    result = fedoptima.simulate(
        recipe(asked.workload, Path(asked.data), workers=asked.workers),
        interrupted=between_events,
    )
    end = time.perf_counter()
    asked.reply(
        end - first_event[0],
        result.weights,
        call=end - called,
        processor=processor_seconds() - first_event[1],  # workers begin and end within the call
        events=result.events,
        server_samples=result.server_samples,
        split=result.split,
    )


if __name__ == "__main__":
    main()
