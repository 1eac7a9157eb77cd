"""The type of an error says whose fault it is: the user's, the peer's, or ours."""

from __future__ import annotations

from fedoptima.core.text import MOST_TEXT, cut

_MOST_DESCRIBED = MOST_TEXT * 3 // 4  # room for the words that go around it


class FedOptimaError(Exception):
    """Base of every error this package raises on purpose."""


class ConfigError(FedOptimaError):
    """The user's input cannot work. The message names the place, the value and the remedy."""


class RunFailed(FedOptimaError):
    """A run ended with an error. What was recorded is kept."""


class TrainingDiverged(RunFailed):
    """A loss stopped being a finite number."""


class Stalled(FedOptimaError):
    """Nothing can happen any more: the devices a run waits for will never answer."""


class ProtocolViolation(FedOptimaError):
    """A peer did something its role does not allow. The driver drops that peer and continues."""


class NotFinite(ProtocolViolation):
    """A peer sent values that are not finite: its training has diverged, or its data are bad."""


class Unresponsive(ProtocolViolation):
    """A peer stopped sending or reading. Its link may be the cause, so it may come back."""


class InvariantBroken(FedOptimaError):
    """A bug in this package. The driver stops the run and saves the trace."""


def describe(error: BaseException) -> str:
    """The message of our own errors is enough; for others the type is needed, too."""
    own = isinstance(error, FedOptimaError)
    return cut(str(error) if own else f"{type(error).__name__}: {error}", _MOST_DESCRIBED)


def run_failed(reason: str, cause: Exception | None) -> FedOptimaError:
    """What to raise when a run has ended with ``reason``.

    ``cause``: what the server's job raised; None if it was not a job of the server that failed.
    """
    if isinstance(cause, ConfigError):
        return ConfigError(reason)
    diverged = cause is None or isinstance(cause, TrainingDiverged)
    return TrainingDiverged(reason) if diverged else RunFailed(reason)
