"""The only list of models, and the one way from a recipe to a network.

Facts come from the data (image: channels, image_size, classes; text: vocabulary, length, classes;
table: features, classes), options from the user. Options win over facts, and every option must be
one the builder knows. Weights are drawn from torch's generator: the caller seeds it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Literal

from torch import nn

from fedoptima.core.errors import ConfigError
from fedoptima.models.mlp import mlp
from fedoptima.models.mobilenet import mobilenet_v3_large
from fedoptima.models.transformer import transformer, transformer6, transformer12
from fedoptima.models.vgg5 import vgg5
from fedoptima.named_code import ANY_CODE, AllowedCode, Code, installed

Kind = Literal["image", "text", "table"]


@dataclass(frozen=True, slots=True)
class ModelEntry:
    builder: Code
    kind: Kind


MODELS: Mapping[str, ModelEntry] = {
    "vgg5": ModelEntry(vgg5, "image"),
    "mobilenet_v3_large": ModelEntry(mobilenet_v3_large, "image"),
    "transformer": ModelEntry(transformer, "text"),
    "transformer6": ModelEntry(transformer6, "text"),
    "transformer12": ModelEntry(transformer12, "text"),
    "mlp": ModelEntry(mlp, "table"),
}

# What the options of these models mean (docs/recipe.md); the data give the first six.
OPTIONS: Mapping[str, str] = {
    "channels": "Channels of an image.",
    "image_size": "Pixels of an image's side.",
    "classes": "Number of classes.",
    "vocabulary": "Number of different tokens.",
    "length": "Tokens in a text.",
    "features": "Numbers in a row of a table.",
    "layers": "Encoder layers; of mlp: hidden layers.",
    "heads": "Attention heads in a layer.",
    "embedding": "Width of a token's embedding.",
    "hidden": "Width of a layer's feed-forward part; of mlp: of a hidden layer.",
    "dropout": "Dropout rate in training.",
}


def build_model(
    name: str,
    facts: Mapping[str, int],
    options: Mapping[str, object],
    code: AllowedCode = ANY_CODE,
) -> nn.Module:
    """The model ``name``, or the one ``package.module:function`` makes, for data with ``facts``."""
    if ":" in name:
        return _call(name, code.load(name, "model.name"), facts, options)
    entry = MODELS.get(name)
    if entry is None and (builder := installed("models", name)) is not None:
        return _call(name, builder, facts, options)
    if entry is None:
        near = get_close_matches(name, MODELS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(
            f"model.name = {name!r}: unknown model; {hint}"
            f"known: {', '.join(MODELS)}, or your own as 'package.module:function'"
        )
    data_kind = _kind_of(facts)
    if data_kind is not None and data_kind != entry.kind:
        fitting = ", ".join(n for n, e in MODELS.items() if e.kind == data_kind)
        raise ConfigError(
            f"model.name = {name!r}: reads {entry.kind}, but the data are {data_kind}; "
            f"choose one of {fitting}, or {entry.kind} data"
        )
    return _call(name, entry.builder, facts, options)


def _kind_of(facts: Mapping[str, int]) -> Kind | None:
    """What the facts describe; None for a user's own data, which may fit any model."""
    if "vocabulary" in facts:
        return "text"
    if "features" in facts:
        return "table"
    return "image" if "channels" in facts else None


def _call(
    name: str, builder: Code, facts: Mapping[str, int], options: Mapping[str, object]
) -> nn.Module:
    """Call the builder with every option, and with the facts it asks for."""
    fixed = builder.keywords if isinstance(builder, partial) else {}
    parameters = [p for p in inspect.signature(builder).parameters.values() if p.name not in fixed]
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    known = {p.name: p for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    for option, value in options.items():
        if option not in known:
            if takes_all:
                continue
            near = get_close_matches(option, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ConfigError(
                f"model.{option} = {value!r}: {name} has no such option; {hint}"
                f"options: {', '.join(known) or 'none'}"
            )
        _check_type(option, value, known[option].annotation)
    arguments = {k: v for k, v in facts.items() if takes_all or k in known} | dict(options)
    missing = [p.name for p in known.values() if p.default is p.empty and p.name not in arguments]
    if missing:
        raise ConfigError(
            f"model {name}: needs {', '.join(missing)}, which the data do not provide; "
            f"set model.{missing[0]}"
        )
    model = builder(**arguments)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model {name}: returned {type(model).__name__}, not a torch.nn.Module")
    return model


def _check_type(option: str, value: object, annotation: object) -> None:
    """Catch mistakes that a TOML file allows: text, fractions and booleans instead of numbers."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if annotation in (int, "int") and not whole:
        raise ConfigError(f"model.{option} = {value!r}: must be a whole number")
    if annotation in (float, "float") and not (whole or isinstance(value, float)):
        raise ConfigError(f"model.{option} = {value!r}: must be a number")
