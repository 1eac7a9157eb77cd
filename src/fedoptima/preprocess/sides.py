"""The network as a plan divides it, and what its parts cost, measured with torch."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from fedoptima.core.errors import ConfigError, InvariantBroken
from fedoptima.core.method import ServerTraining
from fedoptima.core.plan import BlockProfile, Plan
from fedoptima.core.seeding import derive
from fedoptima.models.activation import call, tensors_of
from fedoptima.preprocess.auxiliary import LIGHT, build_auxiliary
from fedoptima.preprocess.cuts import Cuttable, cuttable
from fedoptima.preprocess.light_auxiliary import light_forms
from fedoptima.preprocess.own_auxiliary import users_auxiliary
from fedoptima.preprocess.plan import PlanSettings
from fedoptima.preprocess.profile import (
    profile,
    profile_entry,
    profile_module,
    training_flops,
)
from fedoptima.preprocess.split import METHODS_WITHOUT_SPLIT, Entry, Profile


@dataclass(frozen=True)
class Sides:
    """The network as the plan divides it; parameters are shared with the whole model."""

    device: nn.Module
    auxiliary: nn.Module | None
    server: nn.Module | None
    activation: object  # an example of what crosses the cut


class MeasuredCosts:
    """``example``: a batch of the model's input."""

    def __init__(self, model: nn.Module, example: object, settings: PlanSettings) -> None:
        self._model = model
        self._example = example
        self._settings = settings

    @cached_property
    def _cuts(self) -> Cuttable:
        whole = self._settings.training is ServerTraining.NONE
        at = None if whole else self._settings.after
        return cuttable(self._model, self._example, at, quick=whole)

    def blocks(self) -> Profile:
        try:
            _check_ties(self._model, self._cuts)
            return profile(self._cuts, self._example, traffic=self._settings.traffic)
        except ConfigError:  # a model that cannot be cut can still be trained whole
            if self._settings.training is not ServerTraining.NONE:
                raise
            traffic = self._settings.traffic
            whole = profile_module(
                *(self._model, self._example),
                name="model",
                traffic=traffic,
                input_gradient=False,
            )
            return Profile((whole,))

    def after(self, module: str) -> int:
        split = self._cuts.after(module)
        if split is None:
            raise InvariantBroken(f"no cut after {module!r} in a model that was to have one")
        return split

    def trains_behind(self, split: int) -> bool:
        server = self._cuts.part(split, len(self._cuts.names))
        return any(parameter.requires_grad for parameter in server.parameters())

    def entry(self, split: int) -> Entry:
        activation = _activation(self._cuts.part(0, split), self._example)
        return profile_entry(self._cuts, split, activation, traffic=self._settings.traffic)

    def auxiliary(self, split: int) -> BlockProfile | None:
        device = self._cuts.part(0, split)
        server = self._cuts.part(split, len(self._cuts.names))
        activation = _activation(device, self._example)
        auxiliary = _build_auxiliary(
            device, server, self._example, activation, self._settings.auxiliary, self._settings
        )
        if auxiliary is None:
            return None
        return profile_module(auxiliary, activation, traffic=self._settings.traffic)


def build_sides(model: nn.Module, example: object, plan: Plan, settings: PlanSettings) -> Sides:
    """Both sides of ``model`` as planned; the auxiliary network's weights come from the seed."""
    if plan.split == len(plan.blocks):
        return Sides(model, None, None, None)
    cuts = cuttable(model, example, settings.after)
    device, server = cuts.part(0, plan.split), cuts.part(plan.split, len(plan.blocks))
    clash = [name for name in device.state_dict() if name.startswith("aux.")]
    if clash:
        raise ConfigError(
            f"the model calls a tensor {clash[0]!r}, but names that begin with 'aux.' belong to "
            "the auxiliary network; rename that part of the model"
        )
    activation = _activation(device, example)
    auxiliary = _build_auxiliary(device, server, example, activation, plan.auxiliary, settings)
    if auxiliary is None and not _learns(device, example):
        raise frozen_side("devices have")  # or each of them would say so alone
    return Sides(device, auxiliary, server, activation)


def frozen_side(who_has: str) -> ConfigError:
    return ConfigError(
        f"{who_has} nothing to train: no parameter of that side of the model requires a gradient; "
        "set split.at to cut where each side has some, or unfreeze some with .requires_grad_(True)"
    )


def _check_ties(model: nn.Module, cuts: Cuttable) -> None:
    """A model that is one block because of its tied weights: cutting elsewhere does not help."""
    names: dict[int, str] = {}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        first = names.setdefault(id(tensor), name)
        if first != name and len(cuts.names) < 2:
            raise ConfigError(
                f"the model cannot be split: {first!r} and {name!r} are one tensor, and what "
                "shares a weight stays together with all between; untie them (Hugging Face: "
                "tie_word_embeddings=False), or use a method that does not split the model: "
                f"{', '.join(METHODS_WITHOUT_SPLIT)}"
            )


def _build_auxiliary(
    device: nn.Module,
    server: nn.Module,
    example: object,
    activation: object,
    variant: str | int,
    settings: PlanSettings,
) -> nn.Module | None:
    most = sum(tensor.numel() for tensor in server.parameters())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(settings.seed, "auxiliary"))
        if settings.auxiliary_code is not None:
            key = f"method.auxiliary = {variant!r}"
            return users_auxiliary(settings.auxiliary_code, activation, settings.classes, key)
        if variant == LIGHT:
            return _build_light(device, example, activation, settings, most)
        network = build_auxiliary(
            device, activation, settings.output, variant, server_parameters=most
        )
        return _in_its_precision(network, activation)


def _in_its_precision(network: nn.Module | None, activation: object) -> nn.Module | None:
    """As what it reads: the model may be in bfloat16."""
    if network is not None and tensors_of(activation)[0].is_floating_point():
        network.to(tensors_of(activation)[0].dtype)
    return network


def _build_light(
    device: nn.Module, example: object, activation: object, settings: PlanSettings, most: int
) -> nn.Module | None:
    """The strongest form that costs no more than the device side, else the cheapest."""
    affordable = training_flops(device, example, input_gradient=False)
    network = None
    for build in light_forms(device, activation, settings.output, most):
        torch.manual_seed(derive(settings.seed, "auxiliary"))
        network = _in_its_precision(build(), activation)
        assert network is not None
        if training_flops(network, activation, input_gradient=True) <= affordable:
            break
    return network


def _learns(device: nn.Module, example: object) -> bool:
    """Whether a gradient of what it sends reaches a weight: none does through torch.no_grad."""
    if not any(parameter.requires_grad for parameter in device.parameters()):
        return False
    try:
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            output = call(deepcopy(device).train(), example)
    except Exception:  # whoever trains it says what is wrong
        return True
    return any(tensor.requires_grad for tensor in tensors_of(output))


def _activation(device: nn.Module, example: object) -> object:
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        return call(deepcopy(device).eval(), example)
