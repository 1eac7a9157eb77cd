"""What a core asks its Compute Engine to do. Pure data: no torch here.

An engine's state changes only through its own jobs, one at a time and in order. That is why a
driver may postpone a job's maths until the result is due, and why re-executing recorded jobs
gives the same weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedoptima.core.types import NodeId, Payload, later, value

# ---- device ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prepare:
    """Build the device's side of the network as the plan says."""

    plan: str


@dataclass(frozen=True, slots=True)
class LoadModel:
    data: Payload
    progress: float


@dataclass(frozen=True, slots=True)
class Rebase:
    """The answer to what was exported last: what was learned since is carried over onto it."""

    data: Payload
    progress: float


@value
class Forward:
    """Forward pass of one (micro-)batch; the result is what the server would be sent."""

    seq: int
    part: int = 0
    parts: int = 1


@value
class AuxiliaryStep:
    """Local loss through the auxiliary network, backward pass and update (Alg. 1, l. 7-11)."""

    seq: int


@value
class SkipStep:
    """Instead of `AuxiliaryStep`: the batch was sent, and is not trained on."""

    seq: int


@value
class Backward:
    """Backward pass with the server's gradient; ``apply`` takes the optimiser's step."""

    seq: int
    part: int
    gradient: Payload
    apply: bool = True
    parts: int = 1


@value
class FullStep:
    """One step of the whole network on the device."""

    seq: int


@dataclass(frozen=True, slots=True)
class ExportModel:
    delta: bool = False
    keep: bool = later(False)  # the device trains on with it, until `Rebase`


# ---- server ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """What a device reported about itself, for the Pre-processor."""

    device: NodeId
    samples: int
    flops_per_second: float
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class PlanRun:
    """Profile, split, build the auxiliary network; the result is the initial global model."""

    devices: tuple[DeviceProfile, ...]


@dataclass(frozen=True, slots=True)
class OpenCopy:
    """Give ``device`` its own server-side copy, equal to the global one (again, if it had one)."""

    device: NodeId
    session: int


@dataclass(frozen=True, slots=True)
class CloseCopy:
    device: NodeId


@value
class ServerStep:
    """Train the server side on one (micro-)batch of activations (Alg. 4, l. 5-10)."""

    origin: NodeId
    session: int
    seq: int
    data: Payload
    progress: float
    return_gradient: bool = False
    part: int = 0
    parts: int = 1


@value
class CutStep(ServerStep):
    """Train on activations of a device with a cut of its own: from there on."""

    cut: int = 0


@value
class ReusedStep(ServerStep):
    """Train the server side once more on a batch that it has trained on before."""

    use: int = 1  # how many times, the first not counted
    kept: int = 0  # bytes of all batches that the server keeps to be used again
    cut: int = later(default=0)


@dataclass(frozen=True, slots=True)
class Part:
    device: NodeId
    weight: float
    data: Payload


@dataclass(frozen=True, slots=True)
class ServerOptimizer:
    """How a sum of deltas moves the global model (FedBuff)."""

    learning_rate: float = 1.0
    momentum: float = 0.0


@dataclass(frozen=True, slots=True)
class Merge:
    """``global <- keep * global + sum(weight_i * update_i)``; parts in order of device name.

    With ``server_optimizer`` the updates are deltas. Where devices have server-side copies, both
    sides are merged and the copies of ``refresh`` are set to the result.
    """

    keep: float
    parts: tuple[Part, ...]
    refresh: tuple[NodeId, ...]
    server_optimizer: ServerOptimizer | None = None


@dataclass(frozen=True, slots=True)
class AddUp:
    """Add an update to the sum that the next `FoldedMerge` takes; its weight is in samples.

    It has no result, nobody waits for it, and its time is part of the merge's: effect `Fold`.
    """

    part: Part


@dataclass(frozen=True)
class FoldedMerge(Merge):
    """A merge of updates that the engine has added up already: their tensors are gone."""


@dataclass(frozen=True)
class BasedMerge(Merge):
    """A merge of updates that are, in part, changes of the model their round began with."""

    bases: tuple[Payload | None, ...] = ()  # that model, for each part, if it is known


@dataclass(frozen=True)
class RobustMerge(BasedMerge):
    """A merge in which the engine limits or refuses updates that stand out from the fleet's.

    The result's text names the refused devices (`core.robust.refusals`).
    """

    epochs: tuple[float, ...] = ()  # the part of an epoch that each was trained for


@dataclass(frozen=True)
class CutMerge(BasedMerge):
    """A merge of one update whose parts count differently: each over those who hold it.

    ``weights``: of the blocks up to the plan's first cut, of those up to its second and so on to
    the device's own, and, last, of the auxiliary network; what was there keeps the rest. Blocks
    behind the first cut are the server side's own.
    """

    cut: int = 0
    weights: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class CutModel:
    """Put together the model of a device with this cut; the result is what it is sent."""

    device: NodeId
    session: int
    cut: int


DeviceJob = (
    Prepare
    | LoadModel
    | Rebase
    | Forward
    | AuxiliaryStep
    | SkipStep
    | Backward
    | FullStep
    | ExportModel
)
ServerJob = PlanRun | OpenCopy | CloseCopy | CutModel | ServerStep | AddUp | Merge
Job = DeviceJob | ServerJob


def source_of(job: Job) -> NodeId | None:
    """The device whose data a job of the server works on, if it is one alone."""
    match job:
        case ServerStep(origin=device) | Merge(parts=(Part(device=device),)):
            return device
    return None


def computed(seconds: float, job: Job, taken: float) -> float:
    """The time that a device has computed for its next update, after another job."""
    match job:
        case Forward() | AuxiliaryStep():
            return seconds + taken
        case Prepare() | LoadModel() | ExportModel():
            return 0.0
    return seconds


def cut_of(job: Job) -> int:
    """The blocks on the device that a job of the server is about; 0: as the plan says for all."""
    return job.cut if isinstance(job, CutStep | ReusedStep | CutMerge | CutModel) else 0
