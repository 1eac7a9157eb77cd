"""The methods as anybody would write them down: plain torch, and `Loader` for the batches.

Nothing here knows of clocks, messages or jobs. What a run decides by its timing, the order in which
updates arrive, is an argument; everything else, staleness included, is worked out again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedoptima.data.loader import Loader

State = dict[str, Tensor]


class Worker:
    """A device that trains the whole model by itself; its momentum is its own for ever.

    ``rho``: it is pulled back to the model that a round began with. ``resets``: it forgets its
    momentum when a round begins.
    """

    def __init__(
        self,
        model: nn.Sequential,
        loader: Loader,
        *,
        rate: float = 0.05,
        momentum: float = 0.9,
        rho: float = 0.0,
        resets: bool = False,
    ) -> None:
        self.model = deepcopy(model).train()
        self.loader = loader
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=rate, momentum=momentum, fused=True
        )
        self.iterations = loader.per_epoch  # of a round: one pass over the device's samples
        self.step = 0
        self.began = 0  # the version its round began with
        self.merged: list[bool] = []  # or refused, one update after the other
        self.rho, self.resets = rho, resets
        self.start: State = {}

    def train(self, start: State) -> State:
        """One round."""
        self.model.load_state_dict(start)
        self.start = deepcopy(start)
        for optimizer in self.optimizers() if self.resets else ():
            optimizer.state.clear()
        for _ in range(self.iterations):
            self.learn(*self.loader.batch(self.step))
            self.step += 1
        return deepcopy(self.model.state_dict())

    def optimizers(self) -> list[torch.optim.Optimizer]:
        return [self.optimizer]

    def learn(self, inputs: Tensor, labels: Tensor) -> None:
        self.optimizer.zero_grad()
        cross_entropy(self.model(inputs), labels).backward()
        self.pull()
        self.optimizer.step()

    def pull(self) -> None:
        """The gradient of rho / 2 * distance^2."""
        for name, parameter in self.model.named_parameters() if self.rho else ():
            assert parameter.grad is not None
            parameter.grad += self.rho * (parameter.detach() - self.start[name])


class SplitWorker(Worker):
    """A device with the first block, and its own copy of the rest on the server.

    ``parts`` of a mini-batch are in flight together: their gradients add up to one step a side.
    """

    def __init__(
        self,
        model: nn.Sequential,
        loader: Loader,
        *,
        parts: int = 1,
        server_rate: float = 0.03,
        server_momentum: float = 0.8,
        rho: float = 0.0,
        resets: bool = False,
    ) -> None:
        super().__init__(model, loader, rho=rho, resets=resets)
        self.parts = parts
        self.front, self.back = self.model[:1], self.model[1:]
        self.optimizer = torch.optim.SGD(self.front.parameters(), lr=0.05, momentum=0.9, fused=True)
        self.server_optimizer = torch.optim.SGD(
            self.back.parameters(), lr=server_rate, momentum=server_momentum, fused=True
        )

    def learn(self, inputs: Tensor, labels: Tensor) -> None:
        self.model.zero_grad()
        sent = [self.front(part) for part in inputs.tensor_split(self.parts)]
        arrived = [hidden.detach().requires_grad_() for hidden in sent]
        for hidden, wanted in zip(arrived, labels.tensor_split(self.parts), strict=True):
            share = len(wanted) / len(labels)
            (cross_entropy(self.back(hidden), wanted) * share).backward()
        for hidden, copied in zip(sent, arrived, strict=True):
            hidden.backward(copied.grad)
        self.pull()
        self.server_optimizer.step()
        self.optimizer.step()

    def optimizers(self) -> list[torch.optim.Optimizer]:
        return [self.optimizer, self.server_optimizer]


class AuxiliaryWorker(Worker):
    """A device with the first block and an auxiliary network; it keeps what it would send."""

    def __init__(self, model: nn.Sequential, auxiliary: nn.Module, loader: Loader) -> None:
        both = nn.Sequential()
        both.add_module("0", model[0])
        both.add_module("aux", auxiliary)
        super().__init__(both, loader)
        self.activations: dict[int, tuple[Tensor, Tensor]] = {}

    def learn(self, inputs: Tensor, labels: Tensor) -> None:
        self.optimizer.zero_grad()
        hidden = self.model[0](inputs)
        self.activations[self.step] = (hidden.detach().clone(), labels)
        cross_entropy(self.model[1](hidden), labels).backward()
        self.optimizer.step()


def fedavg(
    workers: Mapping[str, Worker], start: State, rounds: int, *, exact: str | None = None
) -> State:
    """FL; with split workers it is SplitFed and PiPar: both sides wait for all.

    ``exact``: how the names begin of what is added up in double precision, and rounded once.
    """
    held = sum(worker.loader.samples for worker in workers.values())
    for _ in range(rounds):
        states = [
            (worker.loader.samples, worker.train(start)) for _, worker in sorted(workers.items())
        ]
        start = {
            name: max(state[name] for _, state in states)
            if not tensor.is_floating_point()
            else (sum(samples * state[name].double() for samples, state in states) / held).float()
            if exact is not None and name.startswith(exact)
            else sum(samples / held * state[name] for samples, state in states)
            for name, tensor in start.items()
        }
    return start


def fedasync(
    workers: Mapping[str, Worker],
    start: State,
    arrivals: Sequence[str],
    merges: int,
    weight: Callable[[int], float],
    max_delay: int = 10**6,
    decay: Callable[[int], float] = lambda merges: 1.0,
) -> list[State]:
    """FedAsync; with split workers it is OAFL. FedOptima's devices do the same. All versions.

    A device begins its next round with the model its update has just become a part of, or, if the
    update was refused, with the global model: so staleness follows from the order of arrival.
    """
    versions = [start]
    for device in arrivals:
        worker = workers[device]
        local = worker.train(versions[worker.began])
        staleness = len(versions) - 1 - worker.began
        worker.merged.append(staleness <= max_delay)
        if worker.merged[-1]:
            share = weight(staleness) * decay(len(versions) - 1)
            versions.append(mixed(versions[-1], local, share))
        worker.began = len(versions) - 1
        if len(versions) > merges:
            break
    return versions


def mixed(model: State, local: State, weight: float) -> State:
    """``(1 - weight) model + weight local``; of two counters the larger."""
    return {
        name: (1 - weight) * tensor + weight * local[name]
        if tensor.is_floating_point()
        else torch.maximum(tensor, local[name])
        for name, tensor in model.items()
    }


def fedbuff(
    workers: Mapping[str, Worker],
    start: State,
    arrivals: Sequence[str],
    merges: int,
    weight: Callable[[int], float],
    *,
    buffer: int,
    rate: float,
    momentum: float,
) -> State:
    """Parameters move by the mean of scaled changes; buffers are averaged at the same weights."""
    versions = [start]
    parameters = {name for name, _ in next(iter(workers.values())).model.named_parameters()}
    velocity = {name: torch.zeros_like(start[name]) for name in parameters}
    waiting: list[tuple[float, State, State]] = []  # weight, began with, ended with
    for device in arrivals[: merges * buffer]:
        worker = workers[device]
        began = versions[worker.began]
        staleness = len(versions) - 1 - worker.began
        waiting.append((weight(staleness), began, worker.train(began)))
        if len(waiting) == buffer:
            model = dict(versions[-1])
            for name, tensor in model.items():
                if name in parameters:
                    change = sum(w * (new[name] - old[name]) for w, old, new in waiting) / buffer
                    velocity[name] = momentum * velocity[name] + change
                    model[name] = tensor + rate * velocity[name]
                elif tensor.is_floating_point():
                    whole = max(buffer, sum(w for w, _, _ in waiting))
                    kept = 1 - sum(w for w, _, _ in waiting) / whole
                    share = sum(w * new[name] for w, _, new in waiting) / whole
                    model[name] = kept * tensor + share
                else:
                    model[name] = max([tensor, *(new[name] for _, _, new in waiting)])
            versions.append(model)
            waiting.clear()
        worker.began = len(versions) - 1
    return versions[-1]
