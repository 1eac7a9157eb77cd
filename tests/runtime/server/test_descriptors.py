"""Open files: the limits are those of a process of its own, since a hard one never rises again."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from fedoptima.runtime.server.descriptors import raise_limit
from tests.support.processes import fleet

REPORT = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, {limits})
from fedoptima.runtime.server.descriptors import most_connections, shortage
{call}
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def limited(call: str, soft: int, hard: int) -> list[str]:
    # By itself: a preexec_fn runs gRPC's handlers of a fork, which abort where it has threads.
    script = REPORT.format(call=call, limits=(soft, hard))
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    assert limited("print(most_connections())", 64, 300) == ["172", "(300, 300)"]


def test_no_more_connections_than_are_sensible_unless_more_devices_are_wanted() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < 16_000:
        pytest.skip(f"only {hard} open files are allowed here")
    counts = "most_connections(), most_connections(12_000), most_connections(24_000, 2)"
    said = limited(f"print({counts})", 64, 16_000)
    assert said == ["10000 15000 15000", "(16000, 16000)"]


@pytest.mark.parametrize(("devices", "gateways"), [(172, 0), (688, 4)])
def test_there_is_no_warning_where_all_devices_fit(devices: int, gateways: int) -> None:
    assert limited(f"print(repr(shortage({devices}, {gateways})))", 64, 300)[0] == "''"


def test_a_warning_has_the_numbers_and_the_way_out() -> None:
    (said, limits) = limited("print(shortage(1_000))", 64, 300)
    assert said == (
        "1,000 devices need 1,128 open files, and the system allows 300: 828 of them cannot "
        "connect. Raise the hard limit (ulimit -Hn 1128, LimitNOFILE=1128 of a systemd unit)"
    )
    assert limits == "(300, 300)"
    assert "378 open files each" in limited("print(shortage(1_000, 4))", 64, 300)[0]


def test_a_server_says_at_its_start_that_not_all_devices_will_fit(tmp_path: Path) -> None:
    devices = raise_limit() + 1
    with fleet(tmp_path, "fl") as run:
        server = run.start_server("--set", "stop.hours=1", "--devices", str(devices))
        assert f"{devices:,} devices need {devices + 128:,} open files" in server.said
        assert "129 of them cannot connect" in server.said
