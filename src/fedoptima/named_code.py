"""Code that a recipe names: "package.module:function", or a name that an installed package gives.

The only place where a name becomes code. A user's own recipe may name anything. What was read from
a run's files or came from a server may not: there only modules that the user allows are imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points

from fedoptima.core.errors import ConfigError

Code = Callable[..., object]


@dataclass(frozen=True, slots=True)
class AllowedCode:
    """The packages and modules from which names may load code; None: any."""

    modules: tuple[str, ...] | None

    def load(self, name: str, key: str) -> Code:
        """What "package.module:function" stands for. ``key``: where it was named, for errors."""
        module, _, attribute = name.partition(":")
        if not all(part.isidentifier() for part in (*module.split("."), attribute)):
            raise ConfigError(
                f"{key} = {name!r}: cannot be imported; it must be 'package.module:function'"
            )
        if not self._covers(module):  # before anything is imported: importing is executing
            top = module.partition(".")[0]
            raise ConfigError(
                f"{key} = {name!r}: this code is named by a file or a server, and is not loaded; "
                f"if you trust it, allow its package: --allow-module {top} (in Python: "
                f"allow_modules=[{top!r}])"
            )
        try:
            found: object = getattr(import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(
                f"{key} = {name!r}: cannot be imported ({error}); it must be "
                "'package.module:function' with the module on the Python path"
            ) from error
        if not callable(found):
            raise ConfigError(f"{key} = {name!r}: is a {type(found).__name__}, not a function")
        home = getattr(found, "__module__", None)
        if not self._covers(home):  # an allowed module may itself have imported os.system
            raise ConfigError(
                f"{key} = {name!r}: comes from {home!r}, which is not in an allowed package, and "
                "is not loaded; name it where it is defined"
            )
        return found

    def _covers(self, module: object) -> bool:
        if self.modules is None:
            return True
        whole_parts = (f"{allowed}." for allowed in self.modules)
        return isinstance(module, str) and f"{module}.".startswith(tuple(whole_parts))


ANY_CODE = AllowedCode(None)  # named by the user, on this machine
NO_CODE = AllowedCode(())  # built-in names and installed entry points only


def allow(modules: Iterable[str] | None) -> AllowedCode:
    """As given with ``--allow-module`` or ``allow_modules``."""
    given = (modules,) if isinstance(modules, str) else tuple(modules or ())
    for module in given:
        if not all(part.isidentifier() for part in module.split(".")):
            raise ConfigError(
                f"--allow-module {module}: must be a package or a module, for example my_package"
            )
    return AllowedCode(given)


def import_name(code: object) -> str | None:
    """The name under which a function can be loaded again, if there is one."""
    module, name = getattr(code, "__module__", None), getattr(code, "__qualname__", "")
    if not isinstance(module, str) or module == "__main__" or not name.isidentifier():
        return None
    return f"{module}:{name}" if getattr(sys.modules.get(module), name, None) is code else None


def offered(kind: str) -> list[str]:
    """The names that installed packages offer."""
    return sorted({entry.name for entry in entry_points(group=f"fedoptima.{kind}")})


def installed(kind: str, name: str) -> Code | None:
    """What an installed package offers under this name in its entry points "fedoptima.KIND".

    Who installed the package has chosen it, so its names are as good as built-in ones.
    """
    for entry in entry_points(group=f"fedoptima.{kind}", name=name):
        try:
            found: object = entry.load()
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"{name!r}: the installed package that offers it cannot be imported ({error})"
            ) from error
        if callable(found):
            return found
    return None
