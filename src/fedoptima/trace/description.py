"""What a run is: resolved once when it begins, kept in config.json and in the trace's first line.

Everything that reads a run (report, page, metrics, replay) takes its facts from here. None of them
builds the method again or looks at which files exist.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

from fedoptima.core.errors import ConfigError
from fedoptima.core.text import short_name
from fedoptima.trace.plain_files import read_plain
from fedoptima.trace.run_folder import RunFiles
from fedoptima.version import __version__

SCHEMA = 3  # of the files of a run; 1: fedoptima 0.1.0; 2: without references in records
_READ = range(1, SCHEMA + 1)
_CHECKSUM = "sha256"
NEW_RUN = "; start a new run"


class Mode(StrEnum):
    SIMULATED = "simulated"
    NETWORK = "network"

    @property
    def clock(self) -> str:
        return "virtual" if self is Mode.SIMULATED else "real"


@dataclass(frozen=True)
class RunDescription:
    mode: Mode
    dry: bool
    devices: int  # K: how many the method was built for
    starts_with: int  # how many the server waits for before it plans
    activation_cap: int | None  # omega; None: the method's queue has no cap
    method: str
    options: Mapping[str, object]  # the method's, defaults filled in for K devices
    recipe: Mapping[str, object]
    versions: Mapping[str, str]  # of what it was run with, by package
    paced: bool = False  # devices on the server's machine are slowed to the recipe's speeds
    # What tells its model and data from others; of a dry run, and of earlier versions, nothing.
    material: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.recipe.get("name", ""))

    @property
    def seed(self) -> object:
        return self.recipe.get("seed")

    @property
    def title(self) -> str:
        return f"{self.name}: {short_name(self.method)}, seed {self.seed}"

    def to_plain(self) -> dict[str, object]:
        return {
            "schema": SCHEMA,
            "mode": self.mode.value,
            "dry": self.dry,
            "devices": self.devices,
            "starts_with": self.starts_with,
            "activation_cap": self.activation_cap,
            "method": {"name": self.method, **self.options},
            "versions": dict(self.versions),
            "recipe": dict(self.recipe),
            **({"paced": True} if self.paced else {}),
            **({"material": dict(self.material)} if self.material else {}),
        }

    @staticmethod
    def from_plain(plain: Mapping[str, Any], path: Path) -> RunDescription:
        """``path``: the file that it was read from."""
        check_schema(plain.get("schema", 1), path)
        try:
            if "mode" not in plain:
                return _of_0_1_0(plain, path)
            options = dict(plain["method"])
            return RunDescription(
                mode=Mode(plain["mode"]),
                dry=bool(plain["dry"]),
                devices=int(plain["devices"]),
                starts_with=int(plain["starts_with"]),
                activation_cap=plain["activation_cap"],
                method=str(options.pop("name")),
                options=options,
                recipe=dict(plain["recipe"]),
                versions=dict(plain["versions"]),
                paced=bool(plain.get("paced", False)),
                material=dict(plain.get("material", {})),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(f"{path}: damaged ({error}); start a new run") from error


def check_schema(schema: object, path: Path) -> None:
    if schema not in _READ:
        raise ConfigError(
            f"{path}: of schema {schema}, and this fedoptima ({__version__}) "
            f"reads 1 to {SCHEMA}; run the recipe again"
        )


def config_text(description: RunDescription) -> str:
    """As it is written to config.json: with a checksum over all that it says."""
    plain = description.to_plain()
    return json.dumps({_CHECKSUM: _checksum(plain), **plain}, indent=1)


def read_config(path: Path) -> RunDescription:
    """From a run's config.json. One without a checksum is of an earlier version."""
    try:
        plain = json.loads(read_plain(path))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: damaged ({error}){NEW_RUN}") from error
    if not isinstance(plain, dict):
        raise ConfigError(f"{path}: damaged (not a JSON object){NEW_RUN}")
    checksum = plain.pop(_CHECKSUM, None)
    if checksum is not None and checksum != _checksum(plain):
        raise ConfigError(f"{path}: damaged (its checksum does not fit){NEW_RUN}")
    return RunDescription.from_plain(plain, path)


def _checksum(plain: Mapping[str, object]) -> str:
    """However it is laid out."""
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


# ---- fedoptima 0.1.0 wrote the recipe alone ------------------------------------------------------

# Its own rules, as they were: the defaults of today's methods and fleets may differ.
_FLEETS_OF_0_1_0 = {"testbed_a": 8, "testbed_b": 16, "uniform": 8}


def _of_0_1_0(plain: Mapping[str, Any], path: Path) -> RunDescription:
    recipe: Mapping[str, Any] = plain["recipe"]
    simulated = not RunFiles(path.parent).devices.is_dir()
    total, present = _fleet_of_0_1_0(recipe.get("fleet") or {})
    wanted = (recipe.get("deploy") or {}).get("devices")
    devices = total if simulated else max(wanted or 1, total)
    options = dict(recipe.get("method") or {"name": "fedoptima"})
    method = str(options.pop("name"))
    if method in ("fl", "splitfed"):
        options.setdefault("on_leave", "drop")
    cap = None
    if method == "fedoptima" and options.get("auxiliary") != "none":
        given = options.get("activation_cap")
        cap = max(2 * devices, 32) if given is None else int(given)
    return RunDescription(
        mode=Mode.SIMULATED if simulated else Mode.NETWORK,
        dry=bool(plain.get("dry")),
        devices=devices,
        starts_with=max(1, present) if simulated else wanted or total or 1,
        activation_cap=cap,
        method=method,
        options=options,
        recipe=recipe,
        versions=cast("dict[str, str]", plain.get("versions") or {}),
    )


def _fleet_of_0_1_0(fleet: Mapping[str, Any]) -> tuple[int, int]:
    """How many devices there were, and how many of them from the beginning."""
    preset, groups = fleet.get("preset"), fleet.get("devices")
    if preset in _FLEETS_OF_0_1_0 and not groups:
        return _FLEETS_OF_0_1_0[preset], _FLEETS_OF_0_1_0[preset]
    if preset is not None and not groups:
        try:
            groups = tomllib.loads(Path(preset).read_text()).get("devices")
        except OSError as error:
            raise ConfigError(
                f"{preset}: the fleet of a run of fedoptima 0.1.0, and cannot be read "
                f"({error.strerror}); run the recipe again"
            ) from error
    counts = [(group.get("count", 1), not group.get("joins_at")) for group in groups or ()]
    return sum(n for n, _ in counts), sum(n for n, present in counts if present)
