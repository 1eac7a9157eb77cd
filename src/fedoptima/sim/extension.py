"""A run that goes on longer than it was told at first, or ends earlier."""

from __future__ import annotations

from fedoptima.core.events import Ended, Extended, Restarted
from fedoptima.core.stopping import StopRule
from fedoptima.sim.driver import Simulation
from fedoptima.sim.faults import Change


def end(simulation: Simulation, reason: str) -> None:
    """With what it has reached; there is still an evaluation to come."""
    simulation.tell_server(Ended(reason))


def extend(simulation: Simulation, rule: StopRule) -> None:
    """Another budget. A run that was over goes on as after a restart of its server: the devices'
    processes have ended with it, and come back."""
    server, over = simulation.server.machine, simulation.server.machine.stopped
    simulation.tell_server(Extended(rule))
    if not over:
        return
    simulation.tell_server(Restarted())
    leaving = dict(server.leaving_order())
    now = simulation.now
    for device in leaving:
        simulation.apply(Change(now, device, "leave"))
    for device in simulation.devices:  # in the order in which they came at first
        if device in leaving:
            simulation.apply(Change(now, device, "return"))
