from __future__ import annotations

import pytest

from fedoptima.core.aggregation import AsyncStaleness
from fedoptima.core.barrier import Barrier
from fedoptima.core.errors import ConfigError
from fedoptima.core.flow import CappedFlow, OpenFlow
from fedoptima.core.method import Method, ServerTraining
from fedoptima.core.scheduler import CounterScheduler, FifoScheduler
from fedoptima.methods.fedoptima import fedoptima
from fedoptima.methods.fl import fl
from fedoptima.methods.registry import METHODS, find_method, method_options
from fedoptima.testing.world import Description, Device, World


def cap(method: Method) -> int:
    flow = method.flow()
    assert isinstance(flow, CappedFlow)
    return flow.cap


def delay(method: Method) -> int:
    policy = method.aggregation()
    assert isinstance(policy, AsyncStaleness)
    return policy.max_delay


def test_fedoptima_is_the_row_of_the_paper() -> None:
    method = fedoptima(8)
    assert method.program.kind == "auxiliary"
    assert method.training is ServerTraining.SHARED
    assert isinstance(method.scheduler(), CounterScheduler)
    assert delay(method) == 64
    policy = method.aggregation()
    assert isinstance(policy, AsyncStaleness)
    assert policy.rule.weight(3) == 1 / 4


def test_the_cap_is_generous_unless_it_is_given() -> None:
    assert [cap(fedoptima(k)) for k in (1, 16, 100)] == [32, 32, 200]
    assert cap(fedoptima(100, activation_cap=3)) == 3


def test_the_fifo_ablation_changes_the_scheduler_and_the_line() -> None:
    method = fedoptima(8, scheduler="fifo")
    assert isinstance(method.scheduler(), FifoScheduler)
    flow = method.flow()
    assert isinstance(flow, CappedFlow)
    assert not flow.balanced


def test_without_an_auxiliary_network_devices_wait_for_gradients() -> None:
    method = fedoptima(8, auxiliary="none")
    assert method.program.kind == "gradient"
    assert isinstance(method.flow(), OpenFlow)
    assert method.training is ServerTraining.SHARED


def test_fl_is_the_row_of_the_paper() -> None:
    method = fl(8, on_leave="wait", barrier_timeout=9.0)
    assert method.program.kind == "full"
    assert method.training is ServerTraining.NONE
    assert isinstance(method.scheduler(), FifoScheduler)
    assert isinstance(method.flow(), OpenFlow)
    policy = method.aggregation()
    assert isinstance(policy, Barrier)
    assert (policy.on_leave, policy.timeout) == ("wait", 9.0)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_makes_new_policies_for_every_run(name: str) -> None:
    method = find_method(name)(3)
    for make in (method.aggregation, method.scheduler, method.flow):
        assert make() is not make()


@pytest.mark.parametrize("name", METHODS)
def test_every_registered_method_runs_to_its_end(name: str) -> None:
    world = World(Description(find_method(name)(3), [Device(), Device(2.0), Device(8.0)]))
    assert world.run().reason == "3 rounds done"


def test_an_unknown_method_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'fedoptima'"):
        find_method("fedoptimus")


def test_options_are_listed_with_their_defaults() -> None:
    listed = {
        "on_leave": "keep",
        "barrier_timeout": None,
        "participation": 1.0,
        "robust": "none",
        "update_codec": "float32",
    }
    assert method_options("fl") == listed
    assert method_options("fedoptima")["credit_timeout"] == 60.0


def test_federated_averaging_is_found_by_its_usual_name() -> None:
    with pytest.raises(ConfigError, match="'FedAvg': unknown; did you mean 'fl'"):
        find_method("FedAvg")
