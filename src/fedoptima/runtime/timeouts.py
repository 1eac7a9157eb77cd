"""Every wait of the network runtime, in one place. All in seconds.

What is not here does not time out: a device computes as long as it needs, a transfer takes as long
as the link needs as long as it goes on, and a method's own deadlines (credit_timeout,
barrier_timeout) are its options.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timeouts:
    # A connection that is not introduced, or an introduction that is not answered, by then is over.
    handshake: float = 10.0
    # A connection on which nothing was begun for so long is closed.
    idle: float = 60.0
    # A message that stopped half-way, or one that the peer does not read, ends the session. Frames
    # arrive whole: this is a link below 14 kbit/s, which keepalive below does not notice.
    stall: float = 300.0
    # gRPC's own keepalive finds peers that have vanished without a word (power, NAT, cable).
    keepalive_every: float = 20.0
    keepalive_answer: float = 10.0
    # The server's ping measures the device's clock, and is most of what an idle device costs. When
    # a second device comes under a name, the first one has this long to answer.
    ping_every: float = 60.0
    ping_answer: float = 2.0
    # A device that has lost its server waits before it tries again: doubling, with jitter.
    retry_first: float = 0.5
    retry_longest: float = 30.0
    retry_longest_after_loss: float = 4.0  # of a device that was connected: its server comes back
    # A device that stays after a run looks for the next one: the last server may still be ending.
    between_runs: float = 2.0
    # How often a device hands its trace records over.
    telemetry_every: float = 1.0
    # At the end: for the last messages and records to go through.
    farewell: float = 5.0


DEFAULT = Timeouts()
