from __future__ import annotations

from pathlib import Path

import pytest

from fedoptima.config.fleet import FleetConfig
from fedoptima.config.load import validate
from fedoptima.core.errors import ConfigError
from fedoptima.sim.faults import Change, Churn
from fedoptima.sim.fleet import Fleet, NodeSpec, about, build_fleet, charges_memory, presets


def fleet(**table: object) -> Fleet:
    return build_fleet(validate(FleetConfig, table, "fleet.toml"), seed=4)


SERVER = {"gflops": 2.0}


def test_a_group_becomes_devices_whose_names_sort_as_numbers_do() -> None:
    built = fleet(server=SERVER, devices=[{"name": "pi", "count": 12, "gflops": 1.5}])
    names = list(built.devices)
    assert names[0] == "pi-01"
    assert names[-1] == "pi-12"
    assert names == sorted(names)


def test_one_device_keeps_its_groups_name_and_units_become_flops_and_bytes() -> None:
    device = {
        "name": "board",
        "gflops": 1.5,
        "mbps": 8.0,
        "down_mbps": 80,
        "latency_ms": 20,
        "joins_at": 3,
        "seconds": {"forward": 0.5},
    }
    built = fleet(server=SERVER, devices=[device])
    spec = built.devices["board"]
    assert built.server.flops_per_second == 2e9
    assert spec.flops_per_second == 1.5e9
    assert (spec.up, spec.down) == (1e6, 1e7)
    assert spec.latency == 0.02
    assert spec.joins_at == 3
    assert dict(spec.seconds) == {"forward": 0.5}


def test_what_work_and_messages_cost_besides_flops_and_links_is_in_bytes_and_seconds() -> None:
    costs = {"memory_gb_s": 4.0, "overhead_ms": 5.0, "serialization_gb_s": 0.5}
    devices = [{"name": "a", "gflops": 1.0, **costs}, {"name": "b", "gflops": 1.0}]
    built = fleet(server={**SERVER, "mbps": 80.0, "serialization_gb_s": 1.0}, devices=devices)
    device, plain = built.devices["a"], built.devices["b"]
    assert (device.memory, device.overhead, device.serialization) == (4e9, 0.005, 5e8)
    assert (plain.memory, plain.overhead, plain.serialization) == (None, 0.0, None)
    assert (built.server.up, built.server.down, built.server.memory) == (1e7, 1e7, None)
    assert built.packing("a") == pytest.approx(1 / 5e8 + 1 / 1e9)
    assert built.packing("b") == 1 / 1e9


def test_a_slower_device_is_slower_in_all_that_it_does() -> None:
    costs = {"memory_gb_s": 4.0, "overhead_ms": 5.0, "serialization_gb_s": 0.5}
    devices = [{"name": "a", "gflops": 1.0, **costs}]
    slow = fleet(server=SERVER, devices=devices, scale=0.5).devices["a"]
    assert (slow.memory, slow.overhead, slow.serialization) == (2e9, 0.01, 2.5e8)


def test_a_node_twice_as_fast_takes_half_the_time_for_all_it_does() -> None:
    spec = NodeSpec(1.0, {"merge": 4.0}, up=5.0, memory=2.0, overhead=0.5, serialization=3.0)
    assert spec.times(2) == NodeSpec(
        2.0, {"merge": 2.0}, up=5.0, memory=4.0, overhead=0.25, serialization=6.0
    )
    assert NodeSpec(1.0, {}).times(2) == NodeSpec(2.0, {})


@pytest.mark.parametrize(
    ("server", "device", "charged"),
    [({}, {}, False), ({"memory_gb_s": 9.0}, {}, True), ({}, {"memory_gb_s": 1.0}, True)],
)
def test_memory_is_charged_where_a_node_has_a_bandwidth(
    server: dict[str, object], device: dict[str, object], charged: bool
) -> None:
    devices = [{"name": "a", "gflops": 1.0, **device}]
    table = {"server": {**SERVER, **server}, "devices": devices}
    assert charges_memory(validate(FleetConfig, table, "fleet.toml")) == charged


def test_a_run_without_a_fleet_and_the_guessed_testbeds_charge_no_memory() -> None:
    assert not charges_memory(None)
    for preset in ("testbed_a", "testbed_b", "uniform"):
        assert not charges_memory(validate(FleetConfig, {"preset": preset}, "fleet.toml"))


def test_those_who_join_later_are_not_waited_for_at_the_start() -> None:
    devices = [
        {"name": "early", "count": 2, "gflops": 1.0},
        {"name": "late", "gflops": 1.0, "joins_at": 9.0},
    ]
    assert fleet(server=SERVER, devices=devices).present_at_start == 2


@pytest.mark.parametrize("preset", sorted(presets()))
def test_presets_are_the_papers_fleets(preset: str) -> None:
    built = fleet(preset=preset)
    testbed_b = preset.startswith("testbed_b")
    assert len(built.devices) == (16 if testbed_b else 8)
    assert {spec.up * 8e-6 for spec in built.devices.values()} == {100.0 if testbed_b else 50.0}


def test_the_homogeneous_testbed_b_is_sixteen_times_its_fastest_device() -> None:
    mixed, same = fleet(preset="testbed_b"), fleet(preset="testbed_b_homogeneous")
    fastest = max(mixed.devices.values(), key=lambda spec: spec.flops_per_second)
    assert set(map(repr, same.devices.values())) == {repr(fastest)}
    assert same.server == mixed.server


@pytest.mark.parametrize("path", presets().values(), ids=lambda path: path.stem)
def test_a_preset_begins_with_a_line_that_says_what_it_is(path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith("# ")
    assert about(path).endswith(".")


def test_what_is_written_beside_a_preset_replaces_that_part_of_it() -> None:
    plain, other = fleet(preset="uniform"), fleet(preset="uniform", server={"gflops": 1.0})
    assert other.server.flops_per_second == 1e9
    assert other.devices == plain.devices
    churn = {"leave_probability": 0.5, "mbps": [25, 50]}
    assert fleet(preset="uniform", churn=churn).churn == Churn(4, 600.0, 0.5, 25e6 / 8, 50e6 / 8)


def test_a_scale_multiplies_the_speeds_of_all_devices_and_nothing_else() -> None:
    devices = [
        {"name": "slow", "gflops": 1.0, "mbps": 8.0, "seconds": {"forward": 0.6}},
        {"name": "fast", "gflops": 4.0},
    ]
    plain = fleet(server=SERVER, devices=devices)
    scaled = fleet(server=SERVER, devices=devices, scale=0.5)
    assert scaled.server == plain.server
    assert [spec.flops_per_second for spec in scaled.devices.values()] == [0.5e9, 2e9]
    assert dict(scaled.devices["slow"].seconds) == {"forward": 1.2}  # measured times count too
    assert scaled.devices["slow"].up == plain.devices["slow"].up
    with pytest.raises(ConfigError, match=r"scale = 0: input should be greater than 0"):
        fleet(server=SERVER, devices=devices, scale=0)


def test_the_scale_of_a_presets_file_and_the_one_beside_it_multiply(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('scale = 0.5\n[server]\ngflops = 1\n[[devices]]\nname = "a"\ngflops = 2\n')
    assert fleet(preset=str(path)).devices["a"].flops_per_second == 1e9
    assert fleet(preset=str(path), scale=0.5).devices["a"].flops_per_second == 0.5e9


def test_a_preset_read_back_from_a_resolved_recipe_is_the_same_fleet() -> None:
    config = validate(FleetConfig, {"preset": "testbed_a", "server": SERVER}, "fleet.toml")
    again = validate(FleetConfig, config.model_dump(mode="json"), "config.json")
    assert build_fleet(again, 4) == build_fleet(config, 4)


def test_a_preset_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[server]\ngflops = 1\n[[devices]]\nname = "a"\ngflops = 2\n')
    assert list(fleet(preset=str(path)).devices) == ["a"]


def test_a_mistake_in_a_presets_file_names_that_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[server]\ngflops = 1\n[[devices]]\nname = "a"\ngflop = 2\n')
    with pytest.raises(ConfigError, match=r"mine\.toml: .*gflop: unknown key.*'gflops'"):
        fleet(preset=str(path))


def test_changes_are_of_devices_that_exist() -> None:
    devices = [{"name": "a", "gflops": 1.0}]
    change = {"at": 5.0, "device": "a", "kind": "bandwidth", "mbps": 8.0}
    built = fleet(server=SERVER, devices=devices, changes=[change])
    assert built.changes == (Change(5.0, "a", "bandwidth", 1e6),)
    with pytest.raises(ConfigError, match="device = 'b': no such device; there are a"):
        fleet(server=SERVER, devices=devices, changes=[{**change, "device": "b"}])


@pytest.mark.parametrize(
    ("devices", "name"),
    [
        ([{"name": "a", "gflops": 1.0}, {"name": "a", "gflops": 2.0}], "a"),
        ([{"name": "server", "gflops": 1.0}], "server"),
        ([{"name": "a", "count": 2, "gflops": 1.0}, {"name": "a-1", "gflops": 1.0}], "a-1"),
    ],
)
def test_two_nodes_of_one_name_are_refused(devices: list[object], name: str) -> None:
    with pytest.raises(ConfigError, match=f"two nodes are called '{name}'; rename a group"):
        fleet(server=SERVER, devices=devices)


def test_an_unknown_preset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ConfigError, match=r"preset = 'testbed_c'.*testbed_a, .*testbed_b, .*uniform"
    ):
        fleet(preset="testbed_c")
