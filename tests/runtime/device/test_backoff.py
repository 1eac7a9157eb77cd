"""How long a device waits before it tries again."""

from __future__ import annotations

from fedoptima.runtime.device.backoff import Backoff


class World:
    """Time passes when it is told to; jitter takes nothing off."""

    def __init__(self) -> None:
        self.now = 100.0
        self.backoff = Backoff(0.5, 30.0, 4.0, clock=lambda: self.now, jitter=lambda _, most: most)

    def waits(self, times: int) -> list[float]:
        return [self._wait() for _ in range(times)]

    def _wait(self) -> float:
        seconds = self.backoff.wait()
        self.now += seconds
        return seconds

    def connection(self, lasts: float) -> None:
        self.backoff.connected()
        self.now += lasts
        self.backoff.lost()


def test_waits_double_up_to_the_longest() -> None:
    assert World().waits(9) == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_no_wait_is_longer_after_a_year() -> None:
    assert World().waits(5000)[-1] == 30.0


def test_two_devices_do_not_wait_equally_long() -> None:
    waits = {Backoff(0.5, 30.0, 4.0).wait() for _ in range(20)}
    assert len(waits) > 1
    assert all(0.25 <= wait <= 0.5 for wait in waits)


def test_a_good_connection_makes_the_next_wait_short() -> None:
    world = World()
    world.waits(4)
    world.connection(lasts=5.0)
    assert world.waits(2) == [0.5, 1.0]


def test_a_device_that_was_connected_looks_for_its_server_every_few_seconds() -> None:
    """It took up to half a minute to come back after the server had been restarted."""
    world = World()
    world.waits(9)
    world.connection(lasts=60.0)
    assert world.waits(50)[-1] == 4.0
    world.connection(lasts=0.1)  # is sent away
    assert max(world.waits(9)) == 30.0


def test_a_connection_that_ends_at_once_does_not() -> None:
    """Else a device would come, load a model and be sent away, twice a second, for ever."""
    world = World()
    seen = []
    for _ in range(5):
        world.connection(lasts=0.1)
        seen += world.waits(1)
    assert seen == [0.5, 1.0, 2.0, 4.0, 8.0]


def test_time_alone_counts_from_the_last_connection() -> None:
    world = World()
    world.waits(2)
    assert world.backoff.offline == 1.5
    world.connection(lasts=10.0)
    assert world.backoff.offline == 0.0
    world.backoff.lost()  # of a connection that never was
    world.waits(1)
    assert world.backoff.offline == 0.5
