"""A model is cut on one thread while another uses one: an evaluation beside a server's training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import maybe_disable_thunkify

from fedoptima.preprocess.export import exported
from fedoptima.preprocess.flow import Flow
from fedoptima.preprocess.graph import GraphSegments

from .user_models import Efficient, images

LIMIT = 60.0  # seconds, for what takes milliseconds


class Halting(nn.Module):
    """Its forward stops in the middle, so whoever traces it does not come to an end."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.other = nn.Linear(4, 2)
        self.events = _Events()

    def forward(self, value: Tensor) -> Tensor:
        value = self.linear(value)
        self.events.reached.set()
        assert self.events.go_on.wait(LIMIT)
        result: Tensor = self.other(value)
        return result


class _Events:
    def __init__(self) -> None:
        self.reached, self.go_on = Event(), Event()

    def __deepcopy__(self, memo: object) -> _Events:
        return self


Trace = Callable[[nn.Module], object]


def by_torch_fx(model: nn.Module) -> object:
    return GraphSegments(model, torch.ones(3, 4))


def by_torch_export(model: nn.Module) -> object:
    return exported(model, torch.ones(3, 4))


@contextmanager
def halted(trace: Trace) -> Iterator[None]:
    model, answers = Halting(), list[object]()
    thread = Thread(target=lambda: answers.append(trace(model)))
    thread.start()
    assert model.events.reached.wait(LIMIT)
    try:
        yield
    finally:
        model.events.go_on.set()
        thread.join()
    assert answers, "the trace itself failed"


def test_modules_run_on_one_thread_while_torch_fx_traces_on_another() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))

        def forward(self, value: Tensor) -> Tensor:
            return value * self.scale

    model = nn.Sequential(nn.Linear(4, 4), Scaled())
    expected = model(torch.ones(2, 4))
    with halted(by_torch_fx):
        assert torch.equal(model(torch.ones(2, 4)), expected)


def test_modules_run_on_one_thread_while_torch_exports_on_another() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    expected = model(torch.ones(2, 4))
    with halted(by_torch_export):
        assert torch.equal(model(torch.ones(2, 4)), expected)


def test_an_exported_graph_is_cut_on_one_thread_while_torch_exports_on_another() -> None:
    model = Efficient()
    graph, _ = exported(model, images(2))

    def places() -> object:
        flow = Flow(graph, graph.constants.get, frozenset(model.state_dict()))
        found = flow.places(0, len(flow.nodes), several=True)
        return [place.position for place in found.values()]

    expected = places()
    assert expected
    other_symbols = {"value": torch.ones(3, 4)}  # torch names them after the inputs
    with (
        halted(lambda model: exported(model, other_symbols)),
        maybe_disable_thunkify(),  # as in some of torch's own passes: nothing is put off
    ):
        assert places() == expected


@pytest.mark.parametrize("first", [by_torch_fx, by_torch_export])
@pytest.mark.parametrize("second", [by_torch_fx, by_torch_export])
def test_two_threads_trace_one_after_the_other(first: Trace, second: Trace) -> None:
    # The second would find the first one's methods in place of torch's, and put them back for good.
    by_torch_export(nn.Linear(4, 4))  # torch has loaded what it needs for that
    methods = [nn.Module.__call__, nn.Module.__getattr__]
    model, answers = Halting(), list[object]()
    later = Thread(target=lambda: answers.append(second(model)))
    with halted(first):
        later.start()
        model.events.reached.wait(1.0)  # it must not come so far
    model.events.go_on.set()
    later.join()
    assert answers, "the second trace failed"
    assert [nn.Module.__call__, nn.Module.__getattr__] == methods
