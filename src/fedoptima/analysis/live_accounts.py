"""Accounts of a real run while it goes on, for those who watch it.

How the devices are doing is known at once. Busy and idle time need every node's records in the
order of time, and devices' records come late: all wait a moment to be sorted. What comes later
still is counted as if it were new; the figures of a finished run are made from its files, where
every record has its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from fedoptima.analysis.accounts import Accounts
from fedoptima.analysis.fleet import FleetAccount
from fedoptima.analysis.saved_accounts import Saved, Unfit, restore, save
from fedoptima.core.errors import ConfigError
from fedoptima.core.types import SERVER
from fedoptima.trace.record import UNREADABLE, Record
from fedoptima.trace.time_order import PATIENCE, TimeOrder


class LiveAccounts:
    def __init__(self) -> None:
        self.fleet = FleetAccount()  # now
        self.accounts = Accounts()  # a moment ago
        self._order = TimeOrder()

    def catch_up(self, records: Iterable[Record]) -> None:
        """What happened before: a whole trace, in the order of time."""
        for record in records:
            self.fleet.observe(record)
            self.accounts.observe(record)
            self._order.released = record.at

    def save(self) -> Callable[[], Saved]:
        """For a checkpoint. Calling what it returns gives the state of now, also later, on another
        thread: most of the work is there."""
        saved: Saved = {
            "accounts": self.accounts.save(),
            "fleet": save({"fleet": self.fleet}),
            "released": self._order.released,
        }
        waiting = list(self._order.all_waiting())
        return lambda: {**saved, "waiting": [record.to_line() for record in waiting]}

    def restore(self, saved: object) -> None:
        """Raises `Unfit`, and changes nothing, if nobody watched or another version saved it."""
        if not isinstance(saved, dict) or not saved:
            raise Unfit("this checkpoint has no accounts for who watches the run")
        fleet, accounts, order = FleetAccount(), Accounts(), TimeOrder()
        try:
            accounts.restore(saved["accounts"])
            restore({"fleet": fleet}, saved["fleet"])
            order.released = saved["released"]
            for record in map(Record.from_line, saved["waiting"]):
                order.add("" if record.node == SERVER else record.node, [record])
        except (*UNREADABLE, ConfigError) as error:
            raise Unfit("the live accounts of this checkpoint do not fit") from error
        self.fleet, self.accounts, self._order = fleet, accounts, order

    def observe(self, record: Record) -> None:
        """One of the server's, without its tensors, which would be kept for seconds."""
        self.fleet.observe(record)
        self._order.add("", [record])

    def observe_device(self, records: Sequence[Record]) -> None:
        """A device's own."""
        for record in records:
            self.fleet.observe(record)
            self._order.add(record.node, [record])

    def advance(self, now: float) -> None:
        """Count what happened until a moment ago."""
        for record in self._order.release(now - PATIENCE):
            self.accounts.observe(record)
