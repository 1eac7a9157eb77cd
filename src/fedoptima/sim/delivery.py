"""Moves envelopes over the links: an envelope leaves its device's link, and the server's own link
where that is shared, then it arrives."""

from __future__ import annotations

from fedoptima.core.messages import has_tensors, nbytes
from fedoptima.core.types import NodeId
from fedoptima.sim.network import Envelope, Link, Passing, ServerLink
from fedoptima.sim.state import EnvelopeArrives, EnvelopePassed, EnvelopeSent, SimState


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
    shared = state.server.up if upward else state.server.down
    if shared is not None and _held_up(state, shared, link, arrives):
        return None
    return _after_latency(state, link, arrives)


def passed(state: SimState, due: EnvelopePassed) -> EnvelopeArrives | None:
    """The envelope that has left the server's own link, if it arrives at once."""
    shared = state.server.link(upward=due.upward)
    if shared is None or shared.generation != due.generation:
        return None
    passing = shared.take(state.kernel.now)
    _schedule_passing(state, shared, due.upward)
    link = state.devices[passing.device].link(upward=due.upward)
    arrives = EnvelopeArrives(passing.device, due.upward, passing.envelope)
    return _after_latency(state, link, arrives)


def _held_up(state: SimState, shared: ServerLink, link: Link, arrives: EnvelopeArrives) -> bool:
    """Does the server's link hold up what has left a device's?"""
    message = arrives.envelope.message
    if not has_tensors(message):  # a packet among packets: it waits for nobody
        return False
    before = shared.generation
    own = nbytes(message) / link.bytes_per_second
    held = shared.enter(Passing(arrives.device, arrives.envelope), own, state.kernel.now)
    if shared.generation != before:
        _schedule_passing(state, shared, arrives.upward)
    return held


def _after_latency(state: SimState, link: Link, arrives: EnvelopeArrives) -> EnvelopeArrives | None:
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


def _schedule_passing(state: SimState, shared: ServerLink, upward: bool) -> None:
    done = shared.done_at()
    if done is not None:
        due = EnvelopePassed(upward, shared.generation)
        state.kernel.at(max(done, state.kernel.now), due)
