"""Small simulated runs, stopped at any record, as trackers are told of them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from fedoptima.analysis.accounts import Accounts
from fedoptima.analysis.metrics import Moment
from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.trace.description import Mode
from fedoptima.trace.record import Record
from fedoptima.tracking.tracker import Subject
from tests.experiments.runs import CHURN, FLEET, set_up

DEVICES = frozenset({"slow", "middle", "fast"})


@cache
def records_of(method: str, *, churn: bool = False, dry: bool = False) -> tuple[Record, ...]:
    records: list[Record] = []
    fleet = {**FLEET, "churn": CHURN} if churn else FLEET
    set_up(records, dry=dry, method={"name": method}, fleet=fleet).simulation.run()
    return tuple(records)


def accounts_of(records: Iterable[Record]) -> Accounts:
    accounts = Accounts()
    for record in records:
        accounts.observe(record)
    return accounts


def moment_of(records: Iterable[Record], cap: int | None = 32) -> Moment:
    return Moment(accounts_of(records).summary(), DEVICES, cap)


def subject_of(folder: Path, *, resumed: bool = False) -> Subject:
    table = {
        "name": "tiny",
        "seed": 7,
        "model": {"name": "vgg5"},
        "data": {"name": "digits"},
        "stop": {"epochs": 3.0},
    }
    recipe = validate(Recipe, table, "test")
    return Subject(recipe, folder, Mode.SIMULATED, {"fedoptima": "0.1", "torch": "2.13"}, resumed)
