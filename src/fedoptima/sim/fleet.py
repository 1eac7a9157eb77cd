"""From a fleet's description to nodes with names, speeds and links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from fedoptima.config.fleet import DeviceGroup, FleetConfig, ServerConfig
from fedoptima.config.load import read_toml, validate
from fedoptima.core.errors import ConfigError
from fedoptima.core.types import SERVER, NodeId
from fedoptima.sim.faults import Change, Churn

_MBPS = 1e6 / 8  # bytes per second
_GFLOPS = 1e9
_GBYTES = 1e9


@dataclass(frozen=True, slots=True)
class NodeSpec:
    flops_per_second: float
    seconds: Mapping[str, float]  # measured times by job, instead of FLOPs / speed
    up: float = 0.0  # bytes per second; of a server: of its own link, 0: not limited
    down: float = 0.0
    latency: float = 0.0
    joins_at: float = 0.0
    memory: float | None = None  # bytes per second that its work moves; None: not charged
    overhead: float = 0.0  # seconds of every job
    serialization: float | None = None  # bytes per second; None: at once

    def times(self, factor: float) -> NodeSpec:
        """A node that works so many times as fast, with the same links."""
        return replace(
            self,
            flops_per_second=factor * self.flops_per_second,
            seconds={job: taken / factor for job, taken in self.seconds.items()},
            memory=self.memory and factor * self.memory,
            overhead=self.overhead / factor,
            serialization=self.serialization and factor * self.serialization,
        )


@dataclass(frozen=True, slots=True)
class Fleet:
    server: NodeSpec
    devices: Mapping[NodeId, NodeSpec]
    changes: tuple[Change, ...] = ()
    churn: Churn | None = None

    def packing(self, device: NodeId) -> float:
        """Seconds that a byte takes to be packed at one end and unpacked at the other."""
        ends = (self.devices[device], self.server)
        return sum(1 / end.serialization for end in ends if end.serialization)

    @property
    def present_at_start(self) -> int:
        return sum(spec.joins_at == 0 for spec in self.devices.values())


def presets() -> dict[str, Path]:
    """The fleets that come with the package, by name."""
    folder = Path(str(resources.files("fedoptima.sim") / "fleets"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def about(path: Path) -> str:
    """What a fleet of the package is, in a line: its file begins with it."""
    return path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def build_fleet(config: FleetConfig | None, seed: int) -> Fleet:
    if config is None:
        raise ConfigError(
            'fleet: is missing; describe what to simulate, for example fleet.preset = "testbed_a"'
        )
    whole = described(config)
    if whole.server is None:
        raise ConfigError("fleet.server: is missing; give its speed, e.g. server.gflops = 150")
    devices: dict[NodeId, NodeSpec] = {}
    for group in whole.devices:
        for name, spec in _members(group, whole.scale):
            if name in devices or name == SERVER:
                raise ConfigError(f"fleet.devices: two nodes are called {name!r}; rename a group")
            devices[name] = spec
    return Fleet(
        _server(whole.server),
        devices,
        tuple(_changes(whole, devices)),
        _churn(whole, seed),
    )


def described(config: FleetConfig) -> FleetConfig:
    """A part given together with a preset replaces that part of it; a scale multiplies its."""
    if config.preset is None:
        return config
    known = presets()
    path = known.get(config.preset, Path(config.preset))
    if not path.is_file():
        raise ConfigError(
            f"fleet.preset = {config.preset!r}: neither a file nor one of {', '.join(known)}"
        )
    base = validate(FleetConfig, read_toml(path), str(path))
    # Not by model_fields_set: a recipe read back from a run's folder has every field set.
    given = {
        name: getattr(config, name)
        for name, field in FleetConfig.model_fields.items()
        if name != "preset" and getattr(config, name) != field.default
    }
    return base.model_copy(update={**given, "scale": base.scale * config.scale})


def charges_memory(config: FleetConfig | None) -> bool:
    """Does a node of this fleet pay for the bytes that its work moves?"""
    if config is None:
        return False
    whole = described(config)
    nodes = (whole.server, *whole.devices)
    return any(node is not None and node.memory_gb_s is not None for node in nodes)


def _bytes(gigabytes: float | None, scale: float = 1.0) -> float | None:
    return None if gigabytes is None else gigabytes * scale * _GBYTES


def _server(config: ServerConfig) -> NodeSpec:
    link = (config.mbps or 0.0) * _MBPS
    return NodeSpec(
        config.gflops * _GFLOPS,
        {str(job): time for job, time in config.seconds.items()},
        up=link,
        down=link,
        memory=_bytes(config.memory_gb_s),
        overhead=config.overhead_ms / 1000,
        serialization=_bytes(config.serialization_gb_s),
    )


def _members(group: DeviceGroup, scale: float) -> list[tuple[NodeId, NodeSpec]]:
    spec = NodeSpec(
        group.gflops * scale * _GFLOPS,
        {str(job): time / scale for job, time in group.seconds.items()},
        (group.up_mbps or group.mbps) * _MBPS,
        (group.down_mbps or group.mbps) * _MBPS,
        group.latency_ms / 1000,
        group.joins_at,
        _bytes(group.memory_gb_s, scale),
        group.overhead_ms / 1000 / scale,
        _bytes(group.serialization_gb_s, scale),
    )
    if group.count == 1:
        return [(NodeId(group.name), spec)]
    digits = len(str(group.count))  # so that names sort as numbers do
    return [(NodeId(f"{group.name}-{i:0{digits}d}"), spec) for i in range(1, group.count + 1)]


def _changes(config: FleetConfig, devices: Mapping[NodeId, NodeSpec]) -> list[Change]:
    changes = []
    for change in config.changes:
        device = NodeId(change.device)
        if device not in devices:
            raise ConfigError(
                f"fleet.changes: device = {device!r}: no such device; "
                f"there are {', '.join(list(devices)[:20])}"
            )
        changes.append(Change(change.at, device, change.kind, (change.mbps or 0.0) * _MBPS))
    return changes


def _churn(config: FleetConfig, seed: int) -> Churn | None:
    if config.churn is None:
        return None
    slowest, fastest = config.churn.mbps
    return Churn(
        seed, config.churn.every, config.churn.leave_probability, slowest * _MBPS, fastest * _MBPS
    )
