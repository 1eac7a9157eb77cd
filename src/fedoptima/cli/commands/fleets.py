"""``fedoptima fleets``: the fleets that come with the package."""

from __future__ import annotations

from rich.padding import Padding
from rich.text import Text

from fedoptima.cli.console import plain_table, stdout


def fleets() -> None:
    """List the fleets that come with the package."""
    from fedoptima.config.fleet import FleetConfig
    from fedoptima.config.load import read_toml, validate
    from fedoptima.sim.fleet import presets

    console = stdout()
    for name, path in presets().items():
        fleet = validate(FleetConfig, read_toml(path), str(path))
        devices = sum(group.count for group in fleet.devices)
        speed = f", server {fleet.server.gflops:g} GFLOP/s" if fleet.server else ""
        console.print(Text.assemble((name, "bold"), f"  {devices} devices{speed}"))
        table = plain_table("devices", "count", "GFLOP/s", "Mbps up", "Mbps down")
        for group in fleet.devices:
            links = (group.up_mbps or group.mbps, group.down_mbps or group.mbps)
            figures = (group.count, group.gflops, *links)
            table.add_row(group.name, *(f"{figure:g}" for figure in figures))
        console.print(Padding(table, (0, 0, 0, 2), expand=False))
        console.print()
    console.print("Use one with --set 'fleet={preset=\"testbed_a\"}', or describe your own.")
