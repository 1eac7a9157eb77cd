"""Lists of names and of revoked certificates: what they say, and that they are read again."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from fedoptima.core.errors import ConfigError
from fedoptima.runtime.security.access_lists import AccessLists
from fedoptima.runtime.security.certificates import (
    authority_files,
    device_files,
    make_authority,
    make_device,
    revoke_device,
    revoked_file,
)
from fedoptima.runtime.security.pem import read_certificates
from tests.runtime.folders import server_of


def serial_of(folder: Path, name: str) -> int:
    return read_certificates(device_files(folder, name).cert)[0].serial_number


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    make_authority(tmp_path)
    for name in ("pi-1", "pi-2"):
        make_device(tmp_path, name)
    return tmp_path


def test_without_lists_everybody_may_come() -> None:
    lists = AccessLists()
    assert not lists.refresh()
    assert lists.refusal("anybody", None) is None


def test_only_the_names_on_the_list_may_come(tmp_path: Path) -> None:
    file = tmp_path / "devices.txt"
    file.write_text("# the greenhouse\npi-1\n\n  pi-2  # by the door\n")
    lists = AccessLists(file)
    assert lists.refusal("pi-1", None) is None
    assert lists.refusal("pi-2", 5) is None
    assert lists.refusal("pi-3", 5) == (
        "'pi-3' is not on this server's list of devices (--allow-devices)"
    )


def test_a_list_is_read_again_once_it_has_stopped_changing(tmp_path: Path) -> None:
    file = tmp_path / "devices.txt"
    file.write_text("pi-1\n")
    lists = AccessLists(file)
    file.write_text("")  # a copy begins
    assert not lists.refresh()
    file.write_text("pi-1\npi-2\n")
    assert not lists.refresh()
    assert lists.refusal("pi-1", None) is None
    assert lists.refresh()
    assert lists.refusal("pi-2", None) is None
    assert not lists.refresh()


@pytest.mark.parametrize("bad", ["pi 1 and pi 2\n", None])
def test_a_list_that_cannot_be_read_any_more_stays_as_it_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, bad: str | None
) -> None:
    file = tmp_path / "devices.txt"
    file.write_text("pi-1\n")
    lists = AccessLists(file)
    file.unlink()
    if bad is not None:
        file.write_text(bad)
    with caplog.at_level(logging.ERROR):
        assert not any([lists.refresh(), lists.refresh(), lists.refresh()])
    assert caplog.text.count("the list stays as it was") == 1
    assert lists.refusal("pi-1", None) is None
    assert lists.refusal("pi-2", None) is not None


def test_revoking_a_name_takes_what_was_issued_to_it_so_far(certs: Path) -> None:
    lists = AccessLists.of(None, None, server_of(certs))  # the list beside the CA, not there yet
    first = serial_of(certs, "pi-1")
    assert lists.refusal("pi-1", first) is None
    for path in (device_files(certs, "pi-1").cert, device_files(certs, "pi-1").key):
        path.unlink()  # it is known all the same
    make_device(certs, "pi-1")
    second = serial_of(certs, "pi-1")
    assert revoke_device(certs, "pi-1") == [first, second]
    assert revoke_device(certs, "pi-1") == []
    assert any([lists.refresh(), lists.refresh()])
    for serial in (first, second):
        assert f"{serial:x} was revoked: get a new one" in str(lists.refusal("pi-1", serial))
    assert lists.refusal("pi-2", serial_of(certs, "pi-2")) is None

    for path in (device_files(certs, "pi-1").cert, device_files(certs, "pi-1").key):
        path.unlink()
    make_device(certs, "pi-1")
    assert lists.refusal("pi-1", serial_of(certs, "pi-1")) is None
    assert revoke_device(certs, "pi-1") == [serial_of(certs, "pi-1")]  # and it, too, if it must be


def test_a_certificate_that_was_made_before_numbers_were_noted_is_revoked_too(certs: Path) -> None:
    (certs / "issued.txt").unlink()
    assert revoke_device(certs, "pi-1") == [serial_of(certs, "pi-1")]


def test_what_cannot_be_revoked_is_said(certs: Path) -> None:
    with pytest.raises(ConfigError, match="'pi-9': no certificate was made for this device in"):
        revoke_device(certs, "pi-9")
    assert not revoked_file(certs).exists()


def test_lists_that_cannot_be_read_are_refused_at_the_start(tmp_path: Path, certs: Path) -> None:
    wrong = tmp_path / "wrong.txt"
    wrong.write_text("# fine\npi-1 4f\n")
    tls = server_of(certs)
    for allowed, revoked, message in (
        (wrong, None, r"wrong.txt, line 2: 'pi-1 4f' is not a valid device name"),
        (None, wrong, r"wrong.txt, line 2: 'pi-1 4f' does not begin with a serial number"),
        (tmp_path / "none.txt", None, r"none.txt: cannot be read: No such file"),
        (None, tmp_path / "none.txt", r"none.txt: cannot be read: No such file"),
        (authority_files(certs).cert.parent, None, "cannot be read: Is a directory"),
    ):
        with pytest.raises(ConfigError, match=message):
            AccessLists.of(allowed, revoked, tls)
    with pytest.raises(ConfigError, match="--revoked lists certificates, and this server asks"):
        AccessLists.of(None, wrong, None)
