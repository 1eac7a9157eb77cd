from __future__ import annotations

import logging
import threading

import pytest

from fedoptima.tracking.background_sender import BackgroundSender


def test_requests_are_run_one_after_the_other_before_it_closes() -> None:
    done: list[int] = []
    sender = BackgroundSender("there")
    for number in range(100):
        sender.post(done.append, number)
    sender.close()
    assert done == list(range(100))


def test_the_first_failure_is_said_once_and_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []

    def fail() -> None:
        raise OSError("connection refused")

    sender = BackgroundSender("there")
    with caplog.at_level(logging.WARNING):
        sender.post(fail)
        sender.post(fail)
        sender.post(done.append, "after")
        sender.close()
        sender.post(done.append, "much later")
    assert done == []
    assert caplog.messages == [
        "there receives no more of this run, which continues: connection refused"
    ]


def test_nobody_waits_for_an_request_that_hangs(caplog: pytest.LogCaptureFixture) -> None:
    hanging = threading.Event()
    sender = BackgroundSender("there", most=2)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            sender.post(hanging.wait)
        sender.close(patience=0.0)
    assert caplog.messages == [
        "there receives no more of this run, which continues: too much is waiting to be sent"
    ]
    hanging.set()


def test_the_end_waits_only_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    hanging = threading.Event()
    sender = BackgroundSender("there")
    with caplog.at_level(logging.WARNING):
        sender.post(hanging.wait)
        sender.close(patience=0.01)
    assert "not everything was sent" in caplog.text
    hanging.set()
