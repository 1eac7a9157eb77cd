"""A network that learns: its tensors by name, its optimiser, its learning rate, its losses."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from fedoptima.config.training import OptimizerConfig, ScheduleConfig
from fedoptima.core.errors import InvariantBroken
from fedoptima.engine.determinism import draws_nothing
from fedoptima.engine.host_copy import HostCopy
from fedoptima.engine.losses import Losses
from fedoptima.engine.network import Network
from fedoptima.engine.optimizer import (
    OURS,
    STATE,
    LearnerCode,
    build_optimizer,
    plain_step,
    rate_factor,
)
from fedoptima.engine.optimizer_state import OptimizerState
from fedoptima.engine.payloads import Tensors, copy_all, copy_of
from fedoptima.engine.undo import Undo
from fedoptima.engine.weights import MemoryFor, Weights
from fedoptima.preprocess.sides import frozen_side


class Learner:
    """Weights and buffers that are trained by one optimiser, of one or more networks.

    ``networks`` maps a prefix of names to a network: the device side has the prefix "" and its
    auxiliary network "aux.". The first tensors are those of the networks, until others are loaded.
    """

    def __init__(
        self,
        who: str,
        networks: Mapping[str, Network],
        settings: OptimizerConfig,
        schedule: ScheduleConfig,
        *,
        undoable: bool = False,
        masked: bool | None = None,
        static: bool = False,
        code: LearnerCode = OURS,
    ) -> None:
        """``undoable``: a step whose loss is not finite, or that `leave_out` names, is undone.

        ``masked``: without asking whether it has to be; None: on a GPU, which would be waited for.
        ``static``: all tensors stay where they are, as a recorded CUDA graph needs them.
        """
        self.who = who
        self._networks = dict(networks)
        self._settings = settings
        self._schedule = schedule
        self._code = code
        self._own = {prefix: network.leaves() for prefix, network in networks.items()}
        self._parameters: list[Tensor] = list(
            dict.fromkeys(
                tensor
                for own in self._own.values()
                for tensor in own.values()
                if isinstance(tensor, nn.Parameter) and tensor.requires_grad
            )
        )
        if not self._parameters:
            raise frozen_side(f"{who} has")
        compute = self._parameters[0].device
        on_gpu = compute.type == "cuda"
        # Only fused optimisers can leave out a step without being told whether, and take a rate
        # that is a tensor.
        ours = code.build is None
        modules = [network.module for network in networks.values()]
        self.draws_nothing = ours and all(map(draws_nothing, modules))  # as far as is known
        self._masked = ours and undoable and (on_gpu if masked is None else masked)
        self._fused = ours and (self._masked or on_gpu)
        self._optimizer = build_optimizer(
            settings, self._parameters, fused=self._fused, build=code.build
        )
        self._take_step = plain_step(self._optimizer) if ours else self._optimizer.step
        self._optimizer_state = OptimizerState(
            self._optimizer, self._parameters, static=static, on_gpu=self._fused
        )
        self._rates = [float(group["lr"]) for group in self._optimizer.param_groups]
        self._tensors: Tensors = {
            prefix + name: self._own[prefix][name]
            for prefix, network in networks.items()
            for name in network.module.state_dict(keep_vars=True)
        }
        self._names = frozenset(
            prefix + name
            for prefix, own in self._own.items()
            for name, tensor in own.items()
            if isinstance(tensor, nn.Parameter)
        )
        self._rate = settings.learning_rate
        self._rate_tensor = torch.tensor(self._rate, device=compute) if static else None
        self._loss = torch.zeros((), device=compute)
        self._read = 0.0  # losses that were read one by one, and are not in `_loss` yet
        self._losses = 0
        self._undoable = undoable
        buffers = [t for t in self._tensors.values() if not isinstance(t, nn.Parameter)]
        self._undo = Undo(buffers, compute, static=static)
        self._weights = Weights(self._tensors, static=static)
        if static:
            self._prepare_state()
            self._set_rate()

    def parameter_names(self) -> frozenset[str]:
        """All of them: weights shared by two layers have two names, and neither is a buffer."""
        return self._names

    def call(self, value: object, prefix: str = "") -> object:
        """What a network makes of ``value``, with these weights."""
        return self._networks[prefix].call(self, self._own[prefix], value)

    def enter(self, network: Network, value: object) -> object:
        """What a later part of the network, with weights of the same names, makes of ``value``."""
        own = self._own[""]
        if network is self._networks[""]:
            return network.call(self, own, value)
        return network.call(self, ChainMap(own, network.tensors), value)

    def put(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace some of the weights, and nothing else."""
        copy_all({name: self._tensors[name] for name in tensors}, tensors)

    def trained(self) -> Tensors:
        """The weights that are trained, as autograd knows them; shared ones under one name."""
        names = {tensor: name for name, tensor in reversed(self._tensors.items())}
        return {names[parameter]: parameter for parameter in self._parameters}

    def tensors(self) -> Tensors:
        """The weights and buffers themselves: to be read, not kept."""
        return self._weights.read()

    def load(self, tensors: Tensors, memory: MemoryFor | None = None) -> None:
        """``memory``: where the weights are to be, if they can be in one piece."""
        if tensors.keys() != self._tensors.keys():
            odd = sorted(tensors.keys() ^ self._tensors.keys())
            raise InvariantBroken(f"{self.who}: the model's tensors differ: {', '.join(odd[:5])}")
        self._weights.load(tensors, memory)
        if self._settings.reset_on_load:
            self.forget_steps()
        self.drop_gradients()

    def forget_steps(self) -> None:
        """The optimiser begins anew."""
        self._optimizer_state.forget()

    def _prepare_state(self) -> None:
        """What the optimiser would make in its first step, which must not be a special one."""
        for parameter in self._parameters:
            state = self._optimizer.state[parameter]
            for name in STATE[self._settings.name]:
                like = torch.zeros_like(parameter, requires_grad=False)
                state[name] = like.new_zeros((), dtype=torch.float32) if name == "step" else like
            if self._settings.name == "sgd" and not self._settings.momentum:
                state.clear()

    def hand_over(self) -> Tensors:
        """The weights and buffers, which are gone then until others are loaded."""
        self.drop_gradients()
        return self._weights.hand_over()

    def lend(self) -> Tensors:
        """The same, to be copied at once: their memory is kept for those that are loaded next."""
        self.drop_gradients()
        return self._weights.lend()

    def release(self) -> None:
        """Hold no memory until the next model is loaded; the optimiser keeps its state."""
        self.drop_gradients()
        self._weights.release()

    def begin_anew(self, who: str) -> None:
        """As if it had just been made, for somebody else; with the memory that it has."""
        self.who = who
        self.drop_gradients()
        self._weights.spare()
        self._optimizer_state.begin_anew()
        self._loss, self._read, self._losses = torch.zeros_like(self._loss), 0.0, 0
        self._rate = self._settings.learning_rate
        self._set_rate()

    def drop_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def set_progress(self, progress: float) -> None:
        factor = rate_factor(self._schedule, progress, self._code.factor)
        rate = self._settings.learning_rate * factor
        if rate != self._rate:
            self._rate = rate
            self._set_rate()

    def _set_rate(self) -> None:
        if self._rate_tensor is not None:
            self._rate_tensor.fill_(self._rate)
        usual = self._settings.learning_rate
        for group, own in zip(self._optimizer.param_groups, self._rates, strict=True):
            # A user's function may give groups rates of their own.
            rate = self._rate if own == usual else own * (self._rate / usual)
            group["lr"] = rate if self._rate_tensor is None else self._rate_tensor

    def begin(self) -> None:
        """Before the forward passes of a step: keep what they change, in case it is undone."""
        self._undo.begin()

    def note_loss(self, loss: Tensor) -> None:
        if self._undoable and not self._masked:
            self._read += self._undo.read_loss(loss)
        else:
            loss = loss.detach()
            self._loss += self._undo.note_loss(loss) if self._undoable else loss
        self._losses += 1

    def stepped(self) -> None:
        """A recorded step was replayed: count what the record cannot."""
        self._losses += 1

    def leave_out(self, bad: Tensor) -> None:
        """Undo the step that has begun if ``bad`` is true."""
        self._undo.leave_out(bad)

    def held_gradients(self) -> list[Tensor | None]:
        """Of every parameter, as far as the parts of a mini-batch have made them."""
        return [parameter.grad for parameter in self._parameters]

    def hold_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient

    def gradients(self) -> list[Tensor]:
        return [p.grad for p in self._parameters if p.grad is not None]

    def learn(self) -> None:
        """Take the optimiser's step with the gradients that are there."""
        self._step()

    def learn_or_undo(self) -> Tensor:
        """The same, of a step that can be undone.

        The result is above 0 if the loss or a gradient is not finite; then the step was undone.
        """
        if self._masked:
            undone, diverged = self._undo.judge(self.gradients())
            self._mask_step(undone)
            self._step()
            self._undo.put_back(undone)
            return diverged
        undo, fault = self._undo.judge_now(self.gradients())
        if undo:
            self._undo.put_back()
            self.drop_gradients()
        else:
            self._step()
        return self._undo.verdicts[fault]

    def _step(self) -> None:
        if self._settings.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._parameters, self._settings.clip_norm)
        self._take_step()
        self.drop_gradients()

    def _mask_step(self, undone: Tensor) -> None:
        self._optimizer.found_inf = undone  # type: ignore[attr-defined]
        if self._settings.name == "sgd" and self._settings.momentum and not self._optimizer.state:
            # A first step that is left out would leave torch's own momentum uninitialised.
            for parameter in self._parameters:
                momentum = torch.zeros_like(parameter, requires_grad=False)
                self._optimizer.state[parameter]["momentum_buffer"] = momentum

    def _sum(self) -> Tensor:
        """Of all losses since they were taken last."""
        if self._read:
            self._loss += self._read
            self._read = 0.0
        return self._loss

    def take_losses(self) -> Losses:
        """Those since the last time, to be checked once per round, not per step: reading a number
        from a GPU makes the program wait for it."""
        losses = Losses(self.who, HostCopy(self._sum().reshape(1, 1)), self._losses, self._rate)
        if self._loss.is_cuda:
            self._loss.zero_()
        else:  # here the copy is the tensor itself
            self._loss = torch.zeros_like(self._loss)
        self._losses = 0
        return losses

    # ---- checkpoint --------------------------------------------------------------------------

    def save(self) -> tuple[dict[str, object], Tensors]:
        tensors = {f"model.{name}": t for name, t in copy_of(self._weights.held()).items()}
        kinds, kept = self._optimizer_state.save()
        tensors |= copy_of(kept)
        for index, parameter in enumerate(self._parameters):
            if parameter.grad is not None:
                tensors[f"gradient.{index}"] = parameter.grad.detach().clone()
        tensors["loss"] = self._sum().clone()
        if self._undoable:  # between two parts of a mini-batch
            tensors |= self._undo.save()
        return {"rate": self._rate, "losses": self._losses, "optimizer": kinds}, tensors

    def set_aside(self) -> tuple[dict[str, object], Tensors]:
        """What `save` returns after `release`, without copies: it is no longer held here."""
        kinds, tensors = self._optimizer_state.save()
        self._optimizer_state.begin_anew()
        tensors["loss"] = self._sum()
        return {"rate": self._rate, "losses": self._losses, "optimizer": kinds}, tensors

    def take_up(self, state: Mapping[str, object], tensors: Tensors) -> None:
        """What was set aside; the tensors are used where they are."""
        self._restore_optimizer(state, tensors)
        self._loss, self._read = tensors["loss"].clone(), 0.0
        self._losses = int(cast(int, state["losses"]))

    def restore(self, state: Mapping[str, object], tensors: Tensors) -> None:
        if all(f"model.{name}" in tensors for name in self._tensors):
            self._weights.take_in(tensors, "model.")
        else:
            self.release()
        self.drop_gradients()
        own = {name: t.clone() for name, t in tensors.items() if name.startswith("optimizer.")}
        self._restore_optimizer(state, own)
        for index, parameter in enumerate(self._parameters):
            gradient = tensors.get(f"gradient.{index}")
            parameter.grad = None if gradient is None else gradient.clone()
        self._loss.copy_(tensors["loss"])
        self._read = 0.0
        if self._undoable and "undo" in tensors:
            self._undo.restore(tensors)
        self._losses = int(cast(int, state["losses"]))

    def _restore_optimizer(self, state: Mapping[str, object], tensors: Tensors) -> None:
        self._optimizer_state.restore(cast(Mapping[str, object], state["optimizer"]), tensors)
        self._rate = float(cast(float, state["rate"]))
        self._set_rate()

    def restore_buffers(self, tensors: Tensors) -> None:
        """Restore what a forward pass changes, without autograd noticing."""
        for name, tensor in self._tensors.items():
            if not isinstance(tensor, nn.Parameter):
                tensor.data.copy_(tensors[f"model.{name}"])
