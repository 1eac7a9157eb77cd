"""A network without weights of its own."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from fedoptima.core.errors import ConfigError
from fedoptima.engine.payloads import Tensors
from fedoptima.engine.precision import Forward, as_it_is

_ONE_SAMPLE = "Expected more than 1 value per channel when training"  # torch's words


class Network:
    """A module that computes with the tensors of whoever calls it.

    Many simulated devices share one: a device keeps tensors, and never a module of its own.
    """

    def __init__(self, module: nn.Module, forward: Forward = as_it_is) -> None:
        self.module = module.train()
        self._forward = forward
        # Tensors that two layers share have two places and are one.
        self._places = [
            (owner, attribute, f"{path}.{attribute}" if path else attribute)
            for path, owner in module.named_modules(remove_duplicate=False)
            for attribute in (*owner._parameters, *owner._buffers)
            if getattr(owner, attribute) is not None
        ]
        self._first = {name: getattr(owner, place) for owner, place, name in self._places}
        self._saved = frozenset(module.state_dict(keep_vars=True))
        self._caller: object = None

    @property
    def tensors(self) -> Tensors:
        """All that the module came with."""
        return self._first

    def first(self) -> Tensors:
        """The tensors that the module came with, as far as a state dict holds them."""
        return {name: tensor for name, tensor in self._first.items() if name in self._saved}

    def leaves(self) -> Tensors:
        """The first tensors as objects of their own, on the same memory.

        Those that a state dict leaves out, and nobody loads, are copied.
        """
        made: dict[Tensor, Tensor] = {}
        for name, tensor in self._first.items():
            if tensor not in made:
                # Not detach(): autograd's count of changes would be shared by all of them.
                own = tensor.data if name in self._saved else tensor.data.clone()
                if isinstance(tensor, nn.Parameter):
                    own = nn.Parameter(own, requires_grad=tensor.requires_grad)
                made[tensor] = own
        return {name: made[tensor] for name, tensor in self._first.items()}

    def call(self, caller: object, tensors: Mapping[str, Tensor], value: object) -> object:
        """``caller``: owns ``tensors``, which are always the same ones."""
        if self._caller is not caller:
            for owner, attribute, name in self._places:
                setattr(owner, attribute, tensors[name])
            self._caller = caller
        try:
            return self._forward(self.module, value)
        except ValueError as error:
            if not str(error).startswith(_ONE_SAMPLE):
                raise
            raise ConfigError(
                "batch normalisation cannot learn from a batch of one sample: set "
                "training.batch_size to at least 2 (method.micro_batches to at most half of it), "
                "give each device at least 2 samples, or use nn.GroupNorm in the model"
            ) from error
