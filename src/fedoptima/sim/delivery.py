"""Moves envelopes over the devices' links: an envelope leaves its link, then it arrives."""

from __future__ import annotations

from fedoptima.core.types import NodeId
from fedoptima.sim.network import Envelope, Link
from fedoptima.sim.state import EnvelopeArrives, EnvelopeSent, SimState


def is_open(state: SimState, name: NodeId, envelope: Envelope) -> bool:
    """The connection that the envelope belongs to still exists."""
    device = state.devices[name]
    return device.connected and envelope.session == device.session


def post(state: SimState, name: NodeId, upward: bool, envelope: Envelope) -> bool:
    """Is it in transit?"""
    device = state.devices[name]
    if not (device.connected and envelope.session == device.session):
        return False
    link = device.up if upward else device.down
    if link.put(envelope, state.kernel.now):
        _schedule(state, link, name, upward)
    return True


def sent(state: SimState, due: EnvelopeSent) -> EnvelopeArrives | None:
    """The envelope that has left its link, if it arrives at once."""
    name, upward = due.device, due.upward
    link = state.devices[name].link(upward=upward)
    if link.generation != due.generation:
        return None
    arrives = EnvelopeArrives(name, upward, link.take(state.kernel.now))
    _schedule(state, link, name, upward)
    if not link.latency:
        return arrives
    state.kernel.at(state.kernel.now + link.latency, arrives)
    return None


def change_bandwidth(state: SimState, name: NodeId, bytes_per_second: float) -> None:
    for upward in (True, False):
        link = state.devices[name].link(upward=upward)
        link.set_bandwidth(bytes_per_second, state.kernel.now)
        _schedule(state, link, name, upward)


def clear(state: SimState, name: NodeId) -> None:
    """Envelopes in transit are lost."""
    for upward in (True, False):
        state.devices[name].link(upward=upward).clear(state.kernel.now)


def _schedule(state: SimState, link: Link, name: NodeId, upward: bool) -> None:
    """The envelope in front of a link leaves it."""
    done = link.done_at()
    if done is not None:
        due = EnvelopeSent(name, upward, link.generation)
        state.kernel.at(max(done, state.kernel.now), due)
