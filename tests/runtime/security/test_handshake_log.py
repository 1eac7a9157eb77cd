"""The filter on stderr: what it explains, what it lets through, and what it survives."""

from __future__ import annotations

import logging
import os
import pty
import signal
import subprocess
import sys
import textwrap

import pytest

from fedoptima.runtime.security.handshake_log import Repetition, explain, refusals_logged

LINE = (
    "I1115 05:58:36.871588   31045 ssl_transport_security.cc:2563] Handshake failed with error "
    "SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:{}\n"
)
EXPIRED = LINE.format("CERTIFICATE_VERIFY_FAILED: certificate has expired")
SENTENCE = "a connection was refused: its certificate has expired"


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("PEER_DID_NOT_RETURN_A_CERTIFICATE: Invalid certificate", "without a certificate"),
        ("CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate", "another CA"),
        ("BAD_SIGNATURE: certificate signature failure", "another CA"),
        ("CERTIFICATE_VERIFY_FAILED: self signed certificate in certificate chain", "another CA"),
        ("HTTP_REQUEST: Invalid certificate verification context", "does not speak TLS"),
        ("TLSV1_ALERT_UNKNOWN_CA: Invalid certificate", "does not trust this server's"),
        ("SOMETHING_NEW: whatever", "the TLS handshake failed (Handshake failed with error SSL_"),
    ],
)
def test_the_c_cores_words_are_translated(said: str, meant: str) -> None:
    assert meant in explain(LINE.format(said))


def test_what_cannot_be_translated_is_quoted_whole() -> None:
    assert "SOMETHING_NEW: whatever)" in explain(LINE.format("SOMETHING_NEW: whatever"))


def test_the_same_reason_is_told_once_in_a_while_with_a_count() -> None:
    repetition = Repetition()
    assert repetition.tell("late", 100.0) == "a connection was refused: late"
    assert repetition.tell("late", 101.0) is None
    assert repetition.tell("other", 101.0) == "a connection was refused: other"
    assert repetition.tell("late", 109.9) is None
    assert repetition.tell("late", 110.0) == "3 connections were refused: late"
    assert repetition.tell("late", 111.0) is None
    assert repetition.rest() == ["a connection was refused: late"]
    assert repetition.rest() == []


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == "fedoptima.server"]


def test_refusals_are_logged_and_everything_else_passes_unchanged(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    os.write(2, b"before\n")
    with refusals_logged():
        os.write(2, b"one\n" + EXPIRED.encode() + b"tw")
        os.write(2, b"o\nno end of line")
    os.write(2, b", after\n")
    assert capfd.readouterr().err == "before\none\ntwo\nno end of line, after\n"
    assert refusals(caplog) == [SENTENCE]


REMARKS = (
    "I1115 06:28:52.3 11933 chttp2_transport.cc:1403] ipv4:127.0.0.1:1: Got goaway [2]\n"
    "E1115 06:28:52.8 11925 add_port.cc:83] Failed to add port to server\n"
)
WORTH_KNOWING = (
    "E1115 06:28:52.8 11925 server.cc:83] Something is wrong\nI1115 is a day, and this a sentence\n"
)


@pytest.mark.parametrize("asked", [False, True])
def test_grpcs_remarks_are_shown_only_to_who_asks_for_them(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)
    if asked:
        monkeypatch.setenv("GRPC_VERBOSITY", "INFO")
    with refusals_logged():
        os.write(2, (REMARKS + WORTH_KNOWING).encode())
    assert capfd.readouterr().err == (REMARKS if asked else "") + WORTH_KNOWING


def test_what_was_counted_is_told_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    with refusals_logged():
        os.write(2, 3 * EXPIRED.encode())
    assert refusals(caplog) == [
        SENTENCE,
        SENTENCE.replace("a connection was", "2 connections were"),
    ]


def test_it_can_be_used_again(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        with refusals_logged():
            os.write(2, EXPIRED.encode())
    assert refusals(caplog) == [SENTENCE, SENTENCE]


def test_without_a_filter_all_is_as_before(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    for program in ("/no/such/python", "/bin/true"):
        monkeypatch.setattr(sys, "executable", program)
        with refusals_logged():
            os.write(2, EXPIRED.encode())
        assert capfd.readouterr().err == EXPIRED
        assert "are not logged" in refusals(caplog).pop()


def test_a_variable_that_hides_refusals_is_mentioned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("GRPC_VERBOSITY", "error")
    with refusals_logged():
        pass
    assert "GRPC_VERBOSITY hides" in refusals(caplog)[0]


# ---- whole processes ---------------------------------------------------------------------------


def process(
    body: str, *, stderr: int = subprocess.PIPE, start_new_session: bool = False
) -> subprocess.Popen[str]:
    """A process with this body inside `refusals_logged`; its log goes to stdout."""
    script = (
        "import logging, os, signal, sys\nfrom fedoptima.runtime.security.handshake_log import *\n"
    )
    script += "logging.basicConfig(stream=sys.stdout, format='%(message)s')\n"
    script += "with refusals_logged():\n" + textwrap.indent(textwrap.dedent(body), "    ")
    return subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        start_new_session=start_new_session,
    )


def outcome(body: str) -> tuple[str, str]:
    out, err = process(body).communicate(timeout=60)
    return out, err


def test_the_last_words_of_a_crash_come_out() -> None:
    _, err = outcome("os.write(2, b'free(): invalid pointer\\n'); os.abort()")
    assert err == "free(): invalid pointer\n"


def test_a_full_pipe_does_not_stop_a_writer_that_holds_the_interpreters_lock() -> None:
    _, err = outcome(
        "import ctypes; ctypes.PyDLL(None).write(2, b'x' * 999_999 + b'\\n', 1_000_000)"
    )
    assert err == "x" * 999_999 + "\n"


def test_a_ctrl_c_leaves_the_filter_at_work() -> None:
    started = process(
        """
        try:
            print("ready", flush=True)
            signal.pause()
        except KeyboardInterrupt:
            os.write(2, b"stopping\\n")
        """,
        start_new_session=True,
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    os.killpg(started.pid, signal.SIGINT)
    assert started.communicate(timeout=60)[1] == "stopping\n"


def test_pythons_own_stderr_stays_a_terminal() -> None:
    ours, theirs = pty.openpty()
    started = process(
        "print(sys.stderr.isatty(), os.isatty(2)); print('hi', file=sys.stderr)", stderr=theirs
    )
    os.close(theirs)
    assert started.communicate(timeout=60)[0] == "True False\n"
    assert os.read(ours, 100) == b"hi\r\n"
    os.close(ours)


def test_a_filter_that_dies_gives_stderr_back() -> None:
    _, err = outcome(
        """
        import threading
        from contextlib import suppress
        from pathlib import Path
        [reporter] = [one for one in threading.enumerate() if one.name == "refusals"]
        me = str(os.getpid())
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # processes of others end in the meantime
                _, parent, *_ = stat.read_text().rpartition(")")[2].split()
                if parent == me:
                    os.kill(int(stat.parent.name), signal.SIGKILL)
        reporter.join(60)
        os.write(2, b"still here\\n")
        """
    )
    assert err == "still here\n"
