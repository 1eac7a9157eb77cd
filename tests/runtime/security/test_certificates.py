from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from pydantic import ValidationError

from fedoptima.config.fleet import DeviceGroup
from fedoptima.core.errors import ConfigError
from fedoptima.runtime.security.certificates import (
    LONGEST,
    Pair,
    authority_files,
    device_files,
    local_hosts,
    make_authority,
    make_device,
    server_files,
)
from fedoptima.runtime.security.pem import (
    common_name,
    hosts_of,
    issuer_name,
    read_certificates,
    read_key,
    root_of,
    serves,
)


def certificate(pair: Pair) -> x509.Certificate:
    [only] = read_certificates(pair.cert)
    return only


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*.pem")}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "certs"
    make_authority(folder, ["train.example.org", "10.0.0.4", "[fe80::1]"])
    make_device(folder, "pi-1")
    return folder


def test_the_ca_signs_the_server_and_the_devices(made: Path) -> None:
    ca = certificate(authority_files(made))
    for pair in (server_files(made), device_files(made, "pi-1")):
        one = certificate(pair)
        assert root_of([one], [ca]) is ca
        assert issuer_name(one) == common_name(ca)
        assert read_key(pair.key).public_key() == one.public_key()
        assert isinstance(one.public_key(), ec.EllipticCurvePublicKey)
        assert not one.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_the_server_and_a_device_cannot_pass_for_one_another(made: Path) -> None:
    server, device = certificate(server_files(made)), certificate(device_files(made, "pi-1"))
    for purpose, mine, other in (
        (ExtendedKeyUsageOID.SERVER_AUTH, server, device),
        (ExtendedKeyUsageOID.CLIENT_AUTH, device, server),
    ):
        assert serves(mine, purpose)
        assert not serves(other, purpose)


def test_the_server_is_known_by_its_hosts_and_a_device_by_its_name(made: Path) -> None:
    assert hosts_of(certificate(server_files(made))) == ["train.example.org", "10.0.0.4", "fe80::1"]
    assert common_name(certificate(device_files(made, "pi-1"))) == "pi-1"


def test_without_hosts_the_server_is_reached_from_its_own_machine(tmp_path: Path) -> None:
    hosts = hosts_of(certificate(make_authority(tmp_path)))
    assert sorted(hosts) == sorted(local_hosts())
    assert {"localhost", "127.0.0.1", "::1"} <= set(hosts)


def test_keys_are_for_their_owner_alone(made: Path) -> None:
    keys = list(made.rglob("*-key.pem"))
    assert len(keys) == 3
    for key in keys:
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(made.stat().st_mode) == 0o700


def test_no_two_cas_have_the_same_name(made: Path, tmp_path: Path) -> None:
    make_authority(tmp_path)
    ours, theirs = certificate(authority_files(made)), certificate(authority_files(tmp_path))
    assert common_name(ours) != common_name(theirs)


def test_a_certificate_is_valid_for_its_days_and_for_clocks_that_are_behind(tmp_path: Path) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    make_authority(tmp_path, days=30)
    one, ca = certificate(server_files(tmp_path)), certificate(authority_files(tmp_path))
    begin = one.not_valid_after_utc - timedelta(days=30)
    assert before <= begin <= datetime.now(UTC)
    assert one.not_valid_before_utc == begin - timedelta(days=1)
    assert ca.not_valid_after_utc == begin + timedelta(days=3650)


def test_nothing_is_ever_overwritten(made: Path) -> None:
    before = contents(made)
    with pytest.raises(ConfigError, match=r"server\.pem: exists already.*with the same CA"):
        make_authority(made)
    with pytest.raises(ConfigError, match=r"pi-1\.pem: exists already.*move it and its key away"):
        make_device(made, "pi-1")
    assert contents(made) == before


def test_a_key_without_its_certificate_is_not_overwritten_either(tmp_path: Path) -> None:
    make_authority(tmp_path)
    pair = make_device(tmp_path, "pi-1")
    pair.cert.unlink()
    with pytest.raises(ConfigError, match=r"pi-1-key\.pem: exists already"):
        make_device(tmp_path, "pi-1")
    (tmp_path / "server.pem").unlink()
    with pytest.raises(ConfigError, match=r"server-key\.pem: exists already"):
        make_authority(tmp_path)


def test_the_servers_certificate_is_renewed_with_the_same_ca(tmp_path: Path) -> None:
    old = make_authority(tmp_path)
    ca, before = certificate(authority_files(tmp_path)), certificate(old)
    old.cert.unlink()
    old.key.unlink()
    after = certificate(make_authority(tmp_path, ["10.0.0.4"]))
    assert certificate(authority_files(tmp_path)) == ca
    assert root_of([after], [ca]) is ca
    assert after.public_key() != before.public_key()


def test_without_its_key_a_ca_signs_nothing(tmp_path: Path) -> None:
    make_authority(tmp_path)
    authority_files(tmp_path).key.unlink()
    with pytest.raises(ConfigError, match=r"ca-key\.pem: no such file"):
        make_device(tmp_path, "pi-1")
    assert not device_files(tmp_path, "pi-1").key.exists()


def test_another_cas_key_signs_nothing(made: Path, tmp_path: Path) -> None:
    make_authority(tmp_path)
    authority_files(tmp_path).key.write_bytes(authority_files(made).key.read_bytes())
    with pytest.raises(ConfigError, match=r"ca-key\.pem: is not the key of the CA"):
        make_device(tmp_path, "pi-1")


def test_a_device_without_a_ca_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ca\.pem: no such file.*fedoptima certs init"):
        make_device(tmp_path, "pi-1")


def test_no_certificate_outlives_its_ca(made: Path) -> None:
    with pytest.raises(ConfigError, match=r"days = 3700: the CA .* ends on .* at most 36\d\d days"):
        make_device(made, "pi-2", days=3700)


def test_a_ca_lives_as_long_as_its_first_certificate(tmp_path: Path) -> None:
    make_authority(tmp_path, days=LONGEST)
    assert make_device(tmp_path, "pi-1", days=3700).cert.exists()


@pytest.mark.parametrize("days", [0, -1, LONGEST + 1])
def test_days_that_cannot_be_are_refused_before_anything_is_written(
    tmp_path: Path, made: Path, days: int
) -> None:
    with pytest.raises(ConfigError, match=f"days = {days}: must be from 1 to {LONGEST}"):
        make_authority(tmp_path / "new", days=days)
    assert not (tmp_path / "new").exists()
    with pytest.raises(ConfigError, match=f"days = {days}"):
        make_device(made, "pi-2", days=days)


@pytest.mark.parametrize("host", ["", "here:50051", "a b", "-x", "https://here", "ümlaut"])
def test_a_host_that_cannot_be_is_refused_before_anything_is_written(
    tmp_path: Path, host: str
) -> None:
    with pytest.raises(ConfigError, match="is neither a name nor an address"):
        make_authority(tmp_path / "new", ["localhost", host])
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match=r"file.*: cannot be written"):
        make_authority(tmp_path / "file" / "certs")


NAMES = ["a", "pi-1", "Pi_4.b", "0", "x" * 64, "", "-a", ".a", "a/b", "../a", "a b", "ä", "a\n"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_good_for_a_certificate_if_it_is_for_a_fleet(tmp_path: Path, name: str) -> None:
    make_authority(tmp_path, ["localhost"])
    try:
        DeviceGroup(name=name, gflops=1.0)
    except ValidationError:
        with pytest.raises(ConfigError, match="cannot be a device's name"):
            make_device(tmp_path, name)
    else:
        assert common_name(certificate(make_device(tmp_path, name))) == name


@pytest.mark.parametrize("name", ["server", "x" * 65])
def test_names_that_only_a_certificate_cannot_have(made: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be a device's name"):
        make_device(made, name)
