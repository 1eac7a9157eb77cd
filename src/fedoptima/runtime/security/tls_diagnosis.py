"""Why a server refuses this device, found out after a connection has failed.

gRPC says too little: its server closes the connection on a certificate it refuses without a TLS
alert, which the device sees as "Socket closed", as if the server had stopped. So the device shakes
hands once more, with the same files, through Python's ssl module, whose errors are exact. A server
that accepts a device speaks first (HTTP/2 settings); one that hangs up instead has refused it. But
so does one that is starved of time, and a link that breaks just then: a server that has let this
certificate in before has not refused it.
"""

from __future__ import annotations

import socket
import ssl
from datetime import UTC, datetime

from fedoptima.core.errors import ConfigError
from fedoptima.runtime.address import Address
from fedoptima.runtime.security.pem import common_name, issuer_name, read_certificates
from fedoptima.runtime.security.tls import DeviceTLS
from fedoptima.runtime.timeouts import DEFAULT

# OpenSSL's codes for what is wrong with the server's certificate (X509_V_ERR_...).
_NOT_YET_VALID, _EXPIRED, _OTHER_NAME, _OTHER_ADDRESS = 9, 10, 62, 64
# What OpenSSL calls an answer that is no TLS: one name up to 3.1, the other since.
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
_ATTEMPTS = 3  # a server that hangs up because it is being stopped does not do it again


def diagnose(
    server: Address,
    tls: DeviceTLS | None,
    *,
    let_in_with: bytes = b"",
    timeout: float = DEFAULT.handshake,
) -> str | None:
    """One sentence on why trying again is no use; None if it may be of use.

    ``let_in_with``: the certificate, as its file, with which the server let this device in before.
    To be called after a connection has failed, on a thread that may block for some timeouts.
    """
    try:
        for _ in range(_ATTEMPTS):
            if tls is None:
                reason = _plain(server, timeout)
            else:
                reason = _encrypted(server, tls, let_in_with, timeout)
            if reason is None:
                return None
        return reason
    except ConfigError as error:  # the files have changed, or expired, since the device began
        return str(error)
    except OSError:  # not there, not reachable, no answer: all of it may be transient
        return None


def _plain(server: Address, timeout: float) -> str | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection((server.host, server.port), timeout) as connection,
        context.wrap_socket(connection),  # fails, as an OSError, where TLS is not spoken
    ):
        return (
            f"{server} accepts only devices with a certificate, and this one has none: make one "
            f"with '{DeviceTLS.command}' where the CA is, and give it with --tls-ca, --tls-cert "
            "and --tls-key"
        )


def _encrypted(server: Address, tls: DeviceTLS, let_in_with: bytes, timeout: float) -> str | None:
    tls.check(common_name(read_certificates(tls.cert)[0]))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(tls.ca)
    context.load_cert_chain(tls.cert, tls.key)
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((server.host, server.port), timeout) as connection:
        try:
            secure = context.wrap_socket(connection, server_hostname=server.host)
        except ssl.SSLCertVerificationError as error:
            return _about_the_server(server, tls, error)
        except ssl.SSLError as error:
            return _no_tls(server) if error.reason in _NO_TLS else None
        with secure:
            if _speaks(secure) or tls.cert.read_bytes() == let_in_with:
                return None
            return _about_the_device(server, tls)


def _speaks(connection: ssl.SSLSocket) -> bool:
    try:
        return bool(connection.recv(1))
    except (ConnectionError, ssl.SSLError):  # SSLError: an alert, where a proxy is more polite
        return False


def _no_tls(server: Address) -> str:
    return (
        f"{server} does not speak TLS: start that server with --tls-ca, --tls-cert and --tls-key, "
        "or this device without them"
    )


def _about_the_server(server: Address, tls: DeviceTLS, error: ssl.SSLCertVerificationError) -> str:
    clock = f"this machine's clock says {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    if error.verify_code == _EXPIRED:
        wrong = f"has expired ({clock}): make another for the server with 'fedoptima certs init'"
    elif error.verify_code == _NOT_YET_VALID:
        wrong = f"is not valid yet ({clock}): set the clock"
    elif error.verify_code in (_OTHER_NAME, _OTHER_ADDRESS):
        wrong = (
            f"is not good for {server.host}: connect to a name it was made for, or make another "
            f"for the server with 'fedoptima certs init --host {server.host}'"
        )
    else:
        wrong = (
            f"was not signed by the CA {tls.ca} ({error.verify_message}): give the ca.pem of that "
            "server, and make sure that it is the server you mean"
        )
    return f"the certificate of {server} {wrong}"


def _about_the_device(server: Address, tls: DeviceTLS) -> str:
    certificate = read_certificates(tls.cert)[0]
    name, end = common_name(certificate), certificate.not_valid_after_utc
    return (
        f"{server} refused the certificate {tls.cert} (of {name!r}, signed by "
        f"{issuer_name(certificate)!r}, valid until {end:%Y-%m-%d}): it is not from the CA which "
        "that server trusts, or not valid by that server's clock (started with "
        "GRPC_VERBOSITY=INFO, that server's log says which). "
        f"Make another with that server's CA: fedoptima certs device {name}"
    )
