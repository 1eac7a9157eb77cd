"""A gateway's process: Ctrl-C is its server's, from its first moment on."""

from __future__ import annotations

import signal
import socket

import pytest

from fedoptima.core.errors import ConfigError
from fedoptima.runtime.gateway.arena import create
from fedoptima.runtime.gateway.process import MOST_GATEWAYS, check_gateways, start_process


def test_a_gateway_that_loads_outlasts_what_stops_its_server_and_ends_quietly_with_its_server(
    capfd: pytest.CaptureFixture[str],
) -> None:
    ours, theirs = socket.socketpair()
    with start_process([theirs.fileno(), create(4096), create(4096)]) as process:
        theirs.close()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process.send_signal(number)
        ours.close()  # the server ends before it has said what to do
        assert process.wait(60) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("count", [-1, MOST_GATEWAYS + 1, 10**9])
def test_a_number_of_gateways_that_no_machine_needs_is_refused(count: int) -> None:
    with pytest.raises(ConfigError, match=f"--gateways {count}: must be from 0 to 64"):
        check_gateways(count)
