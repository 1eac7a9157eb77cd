"""What the server holds, in bytes, by hand."""

from __future__ import annotations

import pytest

from fedoptima.analysis.memory import (
    Memory,
    MemoryAccount,
    memory_of_copies,
    memory_of_shared,
    training_memory,
)
from fedoptima.analysis.server_state import ServerState
from fedoptima.core.effects import Fold, Note, NoteKind, Run, Send
from fedoptima.core.events import Connected, Disconnected, JobDone, Received
from fedoptima.core.jobs import CloseCopy, FoldedMerge, OpenCopy
from fedoptima.core.messages import ActivationBatch, Failed
from fedoptima.core.plan import BlockProfile
from fedoptima.core.types import SERVER
from fedoptima.trace.record import Record
from tests.analysis.stories import (
    A,
    B,
    answers,
    batch,
    blob,
    joins,
    merge,
    merged,
    planned,
    refusal,
    step,
    stepped,
    told,
    update,
)

# Blocks of 10, 20 and 30 bytes, the first on the device.
BASE = 1000 + 50  # the global model, and blocks two and three once


class Server:
    """Both accounts, fed record by record."""

    def __init__(self) -> None:
        self.state = ServerState()
        self.account = MemoryAccount(self.state)
        self.tell(*joins(0.0, A, B), planned(0.0, blocks=(10, 20, 30), split=1))

    def tell(self, *records: Record) -> Server:
        for record in records:
            self.state.observe(record)
            self.account.observe(record)
        return self

    @property
    def memory(self) -> Memory:
        return self.account.memory()

    @property
    def now(self) -> int:
        return self.account._total.value


@pytest.fixture
def server() -> Server:
    return Server()


def test_at_first_there_is_the_global_model_and_one_server_side(server: Server) -> None:
    assert server.now == BASE
    assert server.memory.peak_models == BASE


def test_a_batch_is_held_from_its_arrival_to_the_end_of_its_step(server: Server) -> None:
    server.tell(batch(1.0, A, 0, 200, Run(1, step(A, 0))))
    assert server.now == BASE + 200
    server.tell(batch(2.0, B, 0, 300))
    assert server.now == BASE + 500
    server.tell(stepped(3.0, step(A, 0), Run(2, step(B, 0))))
    assert server.now == BASE + 300
    server.tell(stepped(5.0, step(B, 0)))
    assert server.now == BASE
    memory = server.memory
    assert memory.total.peak == BASE + 500
    assert memory.total.mean == pytest.approx(BASE + (0 + 200 + 500 + 300 * 2) / 5)
    assert memory.peak_activations == 500
    assert memory.queue.peak == 1  # the one in the running step does not wait
    assert memory.queue.mean == pytest.approx(1 / 5)


def test_a_late_batch_or_a_forbidden_one_is_not_held(server: Server) -> None:
    server.tell(
        batch(1.0, A, 0, 200, Note("late batch dropped", A)),
        batch(1.0, B, 0, 200, Note("peer dropped", B)),
    )
    assert server.now == BASE


def test_what_a_device_left_behind_goes_with_it(server: Server) -> None:
    server.tell(batch(1.0, A, 0, 200, Run(1, step(A, 0))), batch(1.0, A, 1, 70))
    server.tell(update(1.0, A, "u"))
    assert server.now == BASE + 200 + 70 + 100
    server.tell(told(2.0, SERVER, Disconnected(A, 1)))
    assert server.now == BASE + 200  # its step is still running
    server.tell(stepped(3.0, step(A, 0)))
    assert server.now == BASE


def test_a_connection_that_ended_long_ago_takes_nothing_with_it(server: Server) -> None:
    server.tell(told(1.0, SERVER, Connected(A, 2)), batch(1.5, A, 0, 200))
    assert server.now == BASE  # a batch of a dead session is not taken
    server.tell(*joins(2.0, A)[1:])
    server.tell(told(3.0, SERVER, Disconnected(A, 1)))
    assert A in server.state.known


def test_what_a_failed_device_still_sends_is_not_held(server: Server) -> None:
    server.tell(batch(1.0, A, 0, 200))
    server.tell(told(2.0, SERVER, Received(A, 1, Failed("no disk"))))
    server.tell(batch(3.0, A, 1, 200))
    assert server.now == BASE


def test_updates_are_held_until_their_merge_is_done(server: Server) -> None:
    both = merge((A, "u", 0.5), (B, "v", 0.5))
    server.tell(update(1.0, A, "u"), update(2.0, B, "v", Run(1, both)))
    assert server.now == BASE + 200
    server.tell(told(2.5, SERVER, Disconnected(A, 1)))  # too late to matter
    assert server.now == BASE + 200
    server.tell(merged(3.0, both))
    assert server.now == BASE
    assert server.memory.peak_updates == 200


def test_updates_that_are_added_up_are_one_sum_in_double_precision(server: Server) -> None:
    both = FoldedMerge(0.0, merge((A, "u", 0.5), (B, "v", 0.5)).parts, (A, B))
    server.tell(update(1.0, A, "u", Fold(both.parts[0])))
    assert server.now == BASE + 2000
    server.tell(told(1.5, SERVER, Disconnected(A, 1), Note(NoteKind.UPDATE_KEPT, A)))
    server.tell(update(2.0, B, "v", Fold(both.parts[1]), Run(1, both)))
    assert server.now == BASE + 2000
    server.tell(merged(3.0, both))
    assert server.now == BASE
    assert server.state.version == 1


def test_a_buffer_keeps_what_it_accepted_when_the_device_leaves(server: Server) -> None:
    server.tell(update(1.0, A, "u", *answers(A)))
    server.tell(told(2.0, SERVER, Disconnected(A, 1)))
    assert server.now == BASE + 100
    full = merge((A, "u", 0.5), (B, "v", 0.5))
    server.tell(update(3.0, B, "v", Run(1, full)), merged(4.0, full, *answers(B)))
    assert server.now == BASE


def test_a_refused_update_is_let_go_at_once(server: Server) -> None:
    server.tell(update(1.0, A, "u", refusal(A), *answers(A)))
    assert server.now == BASE


def test_every_open_copy_is_a_server_side_more(server: Server) -> None:
    for device in (A, B, A):  # a copy that is opened again is the same copy
        server.tell(batch(1.0, device, 0, 0, Run(1, OpenCopy(device, 1))))
    assert server.now == BASE + 2 * 50
    server.tell(told(2.0, SERVER, JobDone(2, CloseCopy(A), blob("", 0))))
    assert server.now == BASE + 50
    assert server.memory.most_copies == 2
    assert server.memory.peak_models == BASE + 2 * 50


def test_a_peak_is_seen_when_something_else_is_freed_in_the_same_moment(server: Server) -> None:
    one = merge((A, "u", 1.0))
    server.tell(update(1.0, A, "u", Run(1, one), nbytes=50))
    before = server.now
    server.tell(merged(2.0, one, Run(2, OpenCopy(A, 1))))
    assert server.now == before
    assert server.memory.most_copies == 1
    assert server.memory.peak_models == BASE + 50


def test_a_merge_may_change_the_size_of_the_model(server: Server) -> None:
    one = merge((A, "u", 1.0))
    server.tell(update(1.0, A, "u", Run(1, one)), merged(2.0, one, model=1200))
    assert server.now == BASE + 200


def test_the_formulas_are_the_papers() -> None:
    assert memory_of_copies(model=50, activation=7, devices=3) == 4 * 50 + 3 * 7
    assert memory_of_shared(model=50, activation=7, cap=32) == 50 + 32 * 7


def test_the_formulas_stand_beside_what_was_measured(server: Server) -> None:
    parts = ActivationBatch(0, blob("p", 40), part=0, parts=3)
    server.tell(told(1.0, SERVER, Received(A, 1, parts)), batch(1.0, B, 0, 90))
    memory = server.memory
    assert memory.activation == 120  # the three parts together
    assert memory.server_side == 50
    assert memory.formula_copies == 3 * 50 + 2 * 120
    assert memory.formula_shared == 50 + 2 * 120


def test_without_a_server_side_there_is_no_formula() -> None:
    state = ServerState()
    account = MemoryAccount(state)
    for record in (*joins(0.0, A), planned(0.0, blocks=(10, 20), split=2)):
        state.observe(record)
        account.observe(record)
    memory = account.memory()
    assert (memory.formula_copies, memory.formula_shared) == (0, 0)
    assert memory.total.peak == 1000


def test_what_comes_before_the_plan_is_not_held() -> None:
    state = ServerState()
    for record in (*joins(0.0, A), batch(0.0, A, 0, 200), update(0.0, A, "u")):
        state.observe(record)
    assert (state.waiting_bytes, state.update_bytes) == (0, 0)


def test_a_devices_own_records_say_nothing_about_the_server(server: Server) -> None:
    message = ActivationBatch(0, blob("x", 200))
    server.tell(told(1.0, A, Received(SERVER, 1, message), Send(SERVER, 1, message)))
    assert server.now == BASE


SIDE = [
    BlockProfile("a", 0, 0, 4, 4, 10, 40, saved_bytes=100),
    BlockProfile("b", 0, 0, 4, 4, 15, 60, saved_bytes=50),
]


def test_training_adds_gradients_optimiser_state_and_what_autograd_keeps_to_the_formula() -> None:
    shared = training_memory(SIDE, batch=8, activation=30, waiting=6)
    assert shared.formula == memory_of_shared(100, 30, 6)
    assert (shared.optimiser, shared.gradients, shared.autograd) == (100, 100, 8 * 150)
    assert shared.total == shared.formula + 100 + 100 + 1200


def test_every_copy_has_an_optimiser_of_its_own_and_steps_at_once_a_graph_each() -> None:
    copies = training_memory(SIDE, batch=8, activation=30, waiting=5, copies=5, state=2)
    assert copies.formula == memory_of_copies(100, 30, 5)
    assert (copies.optimiser, copies.gradients, copies.autograd) == (5 * 2 * 100, 100, 1200)
    at_once = training_memory(SIDE, batch=8, activation=30, waiting=5, copies=5, steps=5)
    assert (at_once.gradients, at_once.autograd) == (500, 6000)
