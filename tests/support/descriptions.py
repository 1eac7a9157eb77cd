"""Descriptions of runs that were never run."""

from __future__ import annotations

from collections.abc import Mapping

from fedoptima.trace.description import Mode, RunDescription


def described(
    method: str = "fedoptima",
    *,
    network: bool = False,
    dry: bool = False,
    devices: int = 2,
    cap: int | None = None,
    options: Mapping[str, object] | None = None,
    recipe: Mapping[str, object] | None = None,
) -> RunDescription:
    return RunDescription(
        mode=Mode.NETWORK if network else Mode.SIMULATED,
        dry=dry,
        devices=devices,
        starts_with=devices,
        activation_cap=cap,
        method=method,
        options=options or {},
        recipe=recipe or {"name": "run", "seed": 1, "method": {"name": method}},
        versions={"fedoptima": "0.2.0"},
    )
