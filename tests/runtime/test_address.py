from __future__ import annotations

import socket

import pytest

from fedoptima.runtime.address import Address, bind_error, peer_address


@pytest.mark.parametrize(
    ("peer", "address"),
    [("ipv4:127.0.0.1:39512", "127.0.0.1:39512"), ("ipv6:%5B::1%5D:39512", "[::1]:39512")],
)
def test_a_peer_is_named_as_its_address_is_typed(peer: str, address: str) -> None:
    assert peer_address(peer) == address


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        reason = bind_error(Address("127.0.0.1", port))
    assert reason.startswith(f"--listen 127.0.0.1:{port}: cannot be listened on (Address already")
    assert reason.endswith("Stop it, or choose another port")


def test_an_address_of_another_machine() -> None:
    assert bind_error(Address("192.0.2.1", 0)).endswith(
        "(Cannot assign requested address); use an address of this machine, or 0.0.0.0 for all of "
        "them"
    )


def test_a_host_that_does_not_exist() -> None:
    reason = bind_error(Address("no-such-host.invalid", 50051))
    assert "attempting" not in reason
    assert reason.endswith("; choose another address")


def test_one_that_has_become_free() -> None:
    assert bind_error(Address("127.0.0.1", 0)).endswith("(but it can be now); try again")
