"""Whose fault an error is, said by its type: the user's, the peer's, or ours."""

from __future__ import annotations


class FedOptimaError(Exception):
    """Base of every error this package raises on purpose."""


class ConfigError(FedOptimaError):
    """The user's input cannot work. The message names the place, the value and the way out."""


class TrainingDiverged(FedOptimaError):
    """A loss stopped being a finite number. The run ends; what was recorded is kept."""


class Stalled(FedOptimaError):
    """Nothing can happen any more: the devices a run waits for will never answer."""


class ProtocolViolation(FedOptimaError):
    """A peer did something its role does not allow. The driver drops that peer and goes on."""


class InvariantBroken(FedOptimaError):
    """A bug in this package. The driver stops the run and saves the trace."""
