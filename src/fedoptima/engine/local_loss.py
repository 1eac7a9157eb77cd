"""A method's hook in the device program: what a device's loss becomes before it is learned from.

`local_loss(loss, weights, received)` gets the loss of a mini-batch, the weights that are trained,
by name, and the same weights as the device received them when the round began; it returns a loss.
FedProx adds the distance between the two (docs/write-a-method.md). Where the gradient comes from
the server, the loss is not known on the device and is 0: what the hook adds counts, once a step;
and a device's copy of the other blocks on the server is trained with the same hook, there with the
loss. It must depend on its arguments alone: a step may be computed again, and in another process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from fedoptima.core.errors import ConfigError
from fedoptima.core.types import NodeId
from fedoptima.engine.learner import Learner
from fedoptima.engine.payloads import Tensors, copy_of
from fedoptima.preprocess.user_code import line_of, reason_of

Weights = Mapping[str, Tensor]
LocalLoss = Callable[[Tensor, Weights, Weights], Tensor]


def changed_loss(hook: LocalLoss, loss: Tensor, learner: Learner, received: Tensors) -> Tensor:
    """The loss that the hook makes of ``loss``."""
    weights = learner.trained()
    began = {name: received[name] for name in weights}
    versions = _versions(weights, began)
    try:
        made: object = hook(loss, weights, began)
    except Exception as error:
        raise ConfigError(
            f"the method's local_loss(loss, weights, received) fails: {reason_of(error)}"
            f"{line_of(error)}; weights and received are by name: {', '.join([*weights][:3])} ..."
        ) from error
    if not isinstance(made, Tensor) or made.numel() != 1:
        found = f"shape {tuple(made.shape)}" if isinstance(made, Tensor) else type(made).__name__
        raise ConfigError(f"the method's local_loss returned {found}: it must return one loss")
    if loss.requires_grad and not made.requires_grad:
        raise ConfigError(
            "the method's local_loss returned a loss without a gradient; return the loss plus what "
            "you add, computed from weights without detach(), .item() or torch.no_grad"
        )
    if _versions(weights, began) != versions:
        raise ConfigError(
            "the method's local_loss has changed weights or received in place; it may only read "
            "them: compute with new tensors, and return what is added to the loss"
        )
    return made


def _versions(*given: Weights) -> list[int]:
    """A tensor's goes up whenever it is written into."""
    return [tensor._version for tensors in given for tensor in tensors.values()]


class CopyLosses:
    """The hook for devices' copies on the server, which begin their rounds with the devices."""

    def __init__(self, hook: LocalLoss | None) -> None:
        self._hook = hook
        self._began: dict[NodeId, Tensors] = {}  # the weights that a copy's round began with

    def begin(self, device: NodeId, copy: Learner) -> None:
        if self._hook is not None:
            self._began[device] = copy_of(copy.tensors())

    def end(self, device: NodeId) -> None:
        self._began.pop(device, None)

    def changed(self, loss: Tensor, device: NodeId, copy: Learner) -> Tensor:
        if self._hook is None or device not in self._began:
            return loss
        return changed_loss(self._hook, loss, copy, self._began[device])

    def save(self) -> Tensors:
        began = self._began.items()
        return {f"{device}/{name}": t for device, own in began for name, t in own.items()}

    def restore(self, tensors: Tensors) -> None:
        self._began = {}
        for key, tensor in tensors.items():
            device, _, name = key.partition("/")
            self._began.setdefault(NodeId(device), {})[name] = tensor
