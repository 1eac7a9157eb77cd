"""Mistakes in the words of whoever made the call.

What is shared by the command line and Python names options and keys as the command line and a
recipe do. The public functions say the same in Python's words, for what was given as arguments:
``--out`` is ``out=...``, and ``stop.epochs = 0`` is ``epochs=0``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeVar

from fedoptima.core.errors import FedOptimaError

Parameters = ParamSpec("Parameters")
T = TypeVar("T")

_command_line = ContextVar("command_line", default=False)

_TABLES = ("model", "data", "fleet", "method", "task", "training", "split", "stop")
_SHORT = {"model.name": "model", "data.name": "data", "fleet.preset": "fleet"}
_SHORT |= {"method.name": "method", "task.name": "task", "stop.epochs": "epochs"}
_SUFFIXES = {"csv", "json", "jsonl", "toml", "npy", "npz", "parquet", "pt", "py", "safetensors"}
_VALUE = r"""'[^']*'|"[^"]*"|[^\s:;,()]+"""
_KEY = re.compile(rf"""(?<![\w./'"-])({"|".join(_TABLES)})((?:\.\w+)+)(?: = ({_VALUE}))?""")
_OPTIONS: tuple[tuple[str, str], ...] = (  # what is written on the command line, and in Python
    (r"--allow-module \S+ \(in Python: ([^()]*)\)", r"\1"),
    (r"--allow-module (\S+)", r"allow_modules=['\1']"),
    (r"--compute (\S+): ", r"device='\1': "),
    (r"--cpus and --gpus", "on=RayShare(cpus=..., gpus=...)"),
    (r"--devices N", "devices=N"),
    (r"--name pi-1", "name='pi-1'"),
    (r"--on ray", "on='ray'"),
    (r"--seeds or --seed", "seeds=..."),
    (r"--tls-(ca|cert|key)", r"\1=..."),
    (r"--vary ([\w.]+)=(\S+,\S+)", r"vary={'\1': [\2]}"),
    (r"--vary ([\w.]+):", r"vary={'\1': ...}:"),
    (r"--(dry|insecure|stay|weights)\b", r"\1=True"),
)


@contextmanager
def at_the_command_line() -> Iterator[None]:
    """Inside, the public functions are called for a command."""
    token = _command_line.set(True)
    try:
        yield
    finally:
        _command_line.reset(token)


def speaks_python(
    resumed_by: str = "resume",
) -> Callable[[Callable[Parameters, T]], Callable[Parameters, T]]:
    """A public function: its mistakes are told in the words of its arguments.

    ``resumed_by``: the function that resumes what it leaves.
    """

    def decorate(function: Callable[Parameters, T]) -> Callable[Parameters, T]:
        known = signature(function).parameters

        @wraps(function)
        def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> T:
            try:
                return function(*args, **kwargs)
            except FedOptimaError as error:
                if _command_line.get() or not error.args:
                    raise
                given = {name for name, value in kwargs.items() if value is not None}
                whole = not args and "recipe" in known and "recipe" not in given
                said = (name for name in known if whole or name in given)
                text = in_python(str(error), function.__name__, {*said}, resumed_by)
                error.args = (text, *error.args[1:])
                raise

        return call

    return decorate


def in_python(text: str, call: str, arguments: Collection[str], resumed_by: str = "resume") -> str:
    """``arguments``: those whose keys are told as arguments; other keys are a recipe's."""

    def key(found: re.Match[str]) -> str:
        table, path, value = found.groups()
        short = _SHORT.get(f"{table}{path}")
        if short in arguments:
            return f"{short}={value or '...'}"
        if table not in arguments or path[1:] in _SUFFIXES:
            return found.group()
        text = value or "..."
        for name in reversed(path[1:].split(".")):
            text = f"{{{name!r}: {text}}}"
        return f"{table}={text}"

    text = re.sub(r"--set ([\w.]+) ?= ?", r"\1 = ", text)
    text = re.sub(r"--resume ([^;,\n]+)", lambda m: _resumed(m.group(1), resumed_by), text)
    text = re.sub(r"^--([a-z-]+) (\S+): ", _given, text, flags=re.M)
    for option, words in _OPTIONS:
        text = re.sub(option, words, text)
    text = re.sub(
        r"(?<![\w-])--([a-z]+(?:-[a-z]+)*)", lambda m: f"{m.group(1).replace('-', '_')}=...", text
    )
    text = _KEY.sub(key, text)
    own = "|".join(arguments)
    text = re.sub(rf"(?<![\w.])({own}) = ({_VALUE})", r"\1=\2", text)
    # What is wrong stands first, after the call: as the call itself.
    first = r"\w+=(?:\{.*?\}(?=: )|[^:{\n]+)"
    return re.sub(rf"^({call})\(\): ({first}): ", r"\1(\2): ", text, flags=re.M)


def _resumed(folder: str, by: str) -> str:
    own = f"out={folder!r}, resume=True" if by == "serve" else repr(folder)
    return f"fedoptima.{by}({own})"


def _given(found: re.Match[str]) -> str:
    """An option with its value; some have a rule of their own."""
    name, value = found.groups()
    if name in ("compute", "vary"):
        return found.group()
    number = re.fullmatch(r"-?[\d.]+", value)
    return f"{name.replace('-', '_')}={value if number else repr(value)}: "
