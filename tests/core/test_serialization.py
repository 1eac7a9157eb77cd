from __future__ import annotations

import json
import types
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum, StrEnum
from typing import Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedoptima.core.serializable_types  # noqa: F401  (registers the classes)
from fedoptima.core import effects, events, jobs, messages
from fedoptima.core.errors import ConfigError, InvariantBroken
from fedoptima.core.membership import Member
from fedoptima.core.messages import Join
from fedoptima.core.method import ServerTraining
from fedoptima.core.serialization import Plain, freeze, register, register_foreign, thaw
from fedoptima.core.stopping import StopRule
from fedoptima.core.types import Payload, PayloadId, later
from tests.support.bench import running_server
from tests.support.rows import ROWS


def through_json(plain: Plain) -> Plain:
    return json.loads(json.dumps(plain))


def there_and_back(value: object) -> object:
    return thaw(through_json(freeze(value)))


def example(hint: object) -> object:
    """Some value of a field's type, none of them a default."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return example(next(a for a in arguments if a is not types.NoneType))
    if origin is Literal:
        return arguments[0]
    if origin is tuple:
        return tuple(example(a) for a in arguments if a is not Ellipsis)
    if is_dataclass(hint) and isinstance(hint, type):
        return build(hint)
    supertype = getattr(hint, "__supertype__", hint)
    return {int: 7, float: 0.25, str: "text", bool: True}[supertype]  # type: ignore[index]


def build(cls: type) -> object:
    if cls is Payload:
        return Payload(PayloadId("a/0/1"), 12)
    if cls is StopRule:  # not every pair of its fields goes together
        return StopRule(epochs=3.0, target_accuracy=0.5)
    hints = get_type_hints(cls)
    return cls(*(example(hints[field.name]) for field in fields(cls)))


TRACED: list[type] = [
    member
    for union in (messages.Message, jobs.Job, events.Event, effects.Effect)
    for member in get_args(union)
]


@pytest.mark.parametrize("cls", TRACED, ids=lambda cls: cls.__name__)
def test_everything_that_can_be_in_a_trace_comes_back_equal(cls: type) -> None:
    value = build(cls)
    back = there_and_back(value)
    assert back == value
    assert type(back) is cls


@pytest.mark.parametrize("member", get_args(jobs.Job), ids=lambda cls: cls.__name__)
def test_a_done_event_carries_every_job_through(member: type) -> None:
    event = events.JobDone(3, build(member), Payload(PayloadId("a/0/3"), 1), 4, "x")  # type: ignore[arg-type]
    assert there_and_back(event) == event


@pytest.mark.parametrize("method", ROWS)
def test_a_servers_snapshot_is_the_same_after_coming_back(method: str) -> None:
    server = running_server(ROWS[method](), "a", "b").server
    plain = through_json(freeze(server))
    restored = thaw(plain)
    assert type(restored) is type(server)
    assert through_json(freeze(restored)) == plain


def test_an_object_with_attributes_comes_back_with_them() -> None:
    member = Member(3, Join(0, 8, 1.0, 2.0, pending=PayloadId("a/0/9")))
    member.owes_update = True
    back = there_and_back(member)
    assert isinstance(back, Member)
    assert vars(back) == vars(member)


def test_kinds_of_containers_are_kept_apart() -> None:
    value = {
        "tuple": (1, (2.5, "x")),
        "list": [1, [None, True]],
        "deque": deque([1, 2]),
        "dict": {1: "a", "b": (2,)},
        "ordered": OrderedDict([("z", 1), ("a", 2)]),
        "enum": ServerTraining.PER_DEVICE,
    }
    back = there_and_back(value)
    assert back == value
    assert isinstance(back, dict)
    assert [type(item) for item in back.values()] == [type(item) for item in value.values()]
    assert list(back["ordered"]) == ["z", "a"]


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
keys = st.integers() | st.text() | st.tuples(st.integers(), st.text())
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.lists(inner).map(deque)
        | st.dictionaries(keys, inner)
        | st.dictionaries(keys, inner).map(OrderedDict)
    ),
    max_leaves=12,
)


@given(values)
def test_any_nesting_comes_back_equal_and_of_the_same_kind(value: object) -> None:
    back = there_and_back(value)
    assert back == value
    assert type(back) is type(value)


def test_tensors_go_to_the_table_and_come_back_from_it() -> None:
    tensors: dict[PayloadId, object] = {}
    plain = freeze([Payload(PayloadId("a/0/1"), 8, "weights")], tensors)
    assert "weights" not in json.dumps(plain)
    assert tensors == {"a/0/1": "weights"}
    (back,) = thaw(through_json(plain), tensors)  # type: ignore[misc]
    assert back == Payload(PayloadId("a/0/1"), 8)
    assert back.value == "weights"


def test_without_a_table_a_payload_comes_back_empty() -> None:
    back = there_and_back(Payload(PayloadId("a/0/1"), 8, "weights"))
    assert isinstance(back, Payload)
    assert back.value is None


def test_an_unregistered_class_is_our_bug() -> None:
    @dataclass
    class Stranger:
        x: int

    class Colour(Enum):
        RED = "red"

    with pytest.raises(ConfigError, match="Stranger cannot be stored in a checkpoint"):
        freeze(Stranger(1))
    with pytest.raises(ConfigError, match="Colour cannot be stored"):
        freeze(Colour.RED)
    with pytest.raises(InvariantBroken, match="another version"):
        thaw(["Colour", "red"])


class Mood(StrEnum):
    GOOD = "good"


class Pair(NamedTuple):
    one: int
    other: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Slotted:
    pair: Pair
    made: int = field(init=False, default=3)


class Holder:
    def __init__(self) -> None:
        raise AssertionError("its code is not called when it is restored")


def test_objects_of_a_users_classes_come_back() -> None:
    register_foreign(Mood, Pair, Slotted, Holder)
    holder = object.__new__(Holder)
    holder.parts = [Mood.GOOD, Slotted(pair=Pair(1, "x")), Counter(a=2), deque([1, 2], 3)]
    back = there_and_back(holder)
    assert type(back) is Holder
    assert back.parts == holder.parts
    assert [type(part) for part in back.parts] == [Mood, Slotted, Counter, deque]
    assert back.parts[3].maxlen == 3
    assert type(back.parts[1].pair) is Pair


def test_the_newest_definition_of_a_users_class_counts() -> None:
    def cell(text: str) -> type:
        return type("Cell", (), {"__module__": "__main__", "said": text})

    old, new = cell("old"), cell("new")
    register_foreign(old)
    plain = freeze(old())
    register_foreign(new)
    assert thaw(plain).said == "new"  # type: ignore[attr-defined]


@pytest.mark.parametrize("value", [{1}, defaultdict(int), type("Own", (dict,), {})()], ids=str)
def test_what_would_not_come_back_as_it_was_is_refused(value: object) -> None:
    register_foreign(type(value))
    with pytest.raises(ConfigError, match="cannot be stored in a checkpoint"):
        freeze(value)


def test_a_class_that_no_method_has_is_not_imported() -> None:
    with pytest.raises(ConfigError, match="'os:system' is in the checkpoint, and the method"):
        thaw(["os:system", {}])


def test_two_classes_of_one_name_cannot_be_registered() -> None:
    impostor = type("Join", (), {})
    with pytest.raises(InvariantBroken, match="Join"):
        register(impostor)
    register(Join)  # the same one again is fine


def test_fields_that_another_version_left_out_take_their_defaults() -> None:
    assert thaw(["Note", "late batch dropped", "d0"]) == effects.Note("late batch dropped", "d0")  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Grown:
    """A class that got two fields more."""

    name: str
    first: int = later(1)
    second: str = later("")


register(Grown)
GROWN = {
    Grown("a"): ["Grown", "a"],
    Grown("a", 2): ["Grown", "a", 2],
    Grown("a", 1, "b"): ["Grown", "a", 1, "b"],
    Grown("a", 2, "b"): ["Grown", "a", 2, "b"],
}


@pytest.mark.parametrize("value", GROWN)
def test_fields_that_were_added_later_are_written_where_they_are_in_use(value: Grown) -> None:
    assert freeze(value) == GROWN[value]
    assert there_and_back(value) == value


@pytest.mark.parametrize("plain", [["Halt"], ["Halt", "a", False, "more"]])
def test_too_few_or_too_many_fields_are_refused(plain: Plain) -> None:
    with pytest.raises(TypeError):
        thaw(plain)


def test_an_array_that_does_not_say_what_it_is_is_refused() -> None:
    with pytest.raises(ValueError, match="does not name its type"):
        thaw(["()", []])


def test_a_class_that_checks_its_values_checks_them_on_the_way_back() -> None:
    with pytest.raises(ConfigError):
        thaw(["StopRule", *([None] * 5)])
