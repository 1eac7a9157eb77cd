"""Our side of a comparison: `fedoptima.simulate` with the workload's recipe.

The clock runs from the first event, when data and model are loaded, to the result, which is the
evaluated model; workers are started and ended within it. Told as well: the time of the whole call,
and the processor time of all processes within the clock, which says more on a shared machine.

python -m benchmarks.simulated ASKED     (from benchmarks.sides)
"""

from __future__ import annotations

import time
from pathlib import Path

import fedoptima
from benchmarks.sides import Asked, processor_seconds
from benchmarks.workloads import recipe


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
