"""What would make a core file depend on more than its inputs, read from its source text."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import PurePosixPath

# A pure machine has no clock, no chance, no I/O, no threads, and no back door to them.
IMPURE_MODULES = frozenset(
    {"time", "datetime", "sched", "random", "secrets", "uuid"}
    | {"os", "io", "pathlib", "glob", "shutil", "tempfile", "pickle", "logging", "warnings"}
    | {"socket", "ssl", "select", "selectors", "http", "urllib", "subprocess", "signal"}
    | {"asyncio", "threading", "multiprocessing", "concurrent", "queue"}
    | {"importlib", "builtins", "ctypes", "gc", "weakref", "atexit"}
)
# hash() of a string and id() differ from one process to the next.
IMPURE_CALLS = frozenset(
    {"print", "open", "input", "hash", "id", "exec", "eval", "__import__", "breakpoint"}
)

SET_TYPES = frozenset({"set", "frozenset", "Set", "MutableSet", "AbstractSet", "FrozenSet"})
SET_METHODS = frozenset({"union", "intersection", "difference", "symmetric_difference"})
KEEPS_ORDER = frozenset(
    {"list", "tuple", "iter", "enumerate", "zip", "map", "filter", "reversed", "deque", "fromkeys"}
)


def imported(tree: ast.Module) -> Iterator[tuple[int, str, str | None]]:
    """Every import anywhere in the file: line, module, and the name taken from it, if one is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, None
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, "." * node.level + (node.module or ""), alias.name


def impure_imports(path: PurePosixPath, source: str) -> list[str]:
    """Modules in a core file that are not of the standard library, or not pure."""
    found = []
    for line, module, _ in imported(ast.parse(source)):
        top = module.split(".")[0]
        if top in IMPURE_MODULES:
            found.append(f"{path}:{line}: core may not import {top}: it is not pure")
        elif top and top != "fedoptima" and top not in sys.stdlib_module_names:
            found.append(f"{path}:{line}: core may not import {top}: standard library only")
    return found


def impure_calls(path: PurePosixPath, source: str) -> list[str]:
    """Calls of builtins in a core file that do I/O or depend on the process."""
    return [
        f"{path}:{node.lineno}: core may not call {node.func.id}()"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in IMPURE_CALLS
    ]


def called_name(node: ast.expr) -> str | None:
    """The last name of what is called: 'keys' of ``a.b.keys()``."""
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else None


def variable_name(node: ast.AST) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.arg):
        return node.arg
    return node.id if isinstance(node, ast.Name) else None


class SetSpotter:
    """Tells which expressions of one file are sets: displays, calls, variables known as sets."""

    def __init__(self, tree: ast.Module) -> None:
        self.variables: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.AnnAssign) and self._says_set(node.annotation):
                self._remember(node.target)
            elif isinstance(node, ast.arg) and self._says_set(node.annotation):
                self._remember(node)
            elif isinstance(node, ast.Assign) and self.is_set(node.value):
                for target in node.targets:
                    self._remember(target)

    def is_set(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Set | ast.SetComp):
            return True
        if isinstance(node, ast.Call):
            return called_name(node) in SET_TYPES | SET_METHODS
        if isinstance(node, ast.BinOp):  # a | b, a - b: also what dict views give
            sides = (node.left, node.right)
            return any(self.is_set(side) or called_name(side) == "keys" for side in sides)
        return variable_name(node) in self.variables

    def _remember(self, target: ast.AST) -> None:
        if name := variable_name(target):
            self.variables.add(name)

    @staticmethod
    def _says_set(annotation: ast.expr | None) -> bool:
        if isinstance(annotation, ast.Subscript):
            annotation = annotation.value
        return annotation is not None and variable_name(annotation) in SET_TYPES


def unordered_iteration(path: PurePosixPath, source: str) -> list[str]:
    """Places in a core file where the order of a set's elements could reach the outside."""
    tree = ast.parse(source)
    spotter = SetSpotter(tree)
    walked: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.comprehension):
            walked.append(node.iter)
        elif isinstance(node, ast.Starred):
            walked.append(node.value)
        elif isinstance(node, ast.Call) and called_name(node) in KEEPS_ORDER | {"join"}:
            walked.extend(node.args)
    return [
        f"{path}:{node.lineno}: core may not iterate over a set: sort it, or keep a dict"
        for node in walked
        if spotter.is_set(node)
    ]


def purity_violations(path: PurePosixPath, source: str) -> list[str]:
    """Everything that would make a core file depend on more than its inputs."""
    return [
        *impure_imports(path, source),
        *impure_calls(path, source),
        *unordered_iteration(path, source),
    ]
