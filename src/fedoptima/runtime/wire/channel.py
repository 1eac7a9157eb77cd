"""What both ends of a stream agree on: the method's name, and gRPC's settings."""

from __future__ import annotations

from typing import Final

from fedoptima.runtime.timeouts import Timeouts
from fedoptima.runtime.wire.frames import MAX_FRAME_BYTES

SERVICE: Final = "fedoptima.v1.Fleet"
METHOD: Final = "Session"
PATH: Final = f"/{SERVICE}/{METHOD}"

# What may be on its way to one who has not read it: at a round trip of 100 ms a server takes 40
# MB/s of each device, and a device 160 of its server, which is its only peer.
SERVER_WINDOW: Final = 4 << 20
DEVICE_WINDOW: Final = 16 << 20
FRAME: Final = 64 << 10  # bytes of HTTP/2's own frames
STREAMS: Final = 4  # of one connection at a time: a device has one, and for a moment its next

Options = list[tuple[str, int]]


def _common(timeouts: Timeouts, window: int) -> Options:
    return [
        ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
        ("grpc.max_send_message_length", MAX_FRAME_BYTES),
        ("grpc.keepalive_time_ms", int(timeouts.keepalive_every * 1000)),
        ("grpc.keepalive_timeout_ms", int(timeouts.keepalive_answer * 1000)),
        # The wait for the answer to any ping, 60 s by default: it decides, not the one above.
        ("grpc.http2.ping_timeout_ms", int(timeouts.keepalive_answer * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # gRPC would find out with a ping after nearly every small message how large the window
        # has to be, and the ping with its answer costs as much as the message.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", window),
        ("grpc.http2.max_frame_size", FRAME),
    ]


def client_options(timeouts: Timeouts) -> Options:
    return [
        *_common(timeouts, DEVICE_WINDOW),
        # The device's own loop tries again; gRPC's hidden retries would only blur its errors.
        ("grpc.enable_retries", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]


def server_options(
    timeouts: Timeouts, *, connections: int | None = None, shared_port: bool = False
) -> Options:
    """``connections``: at most so many at a time, of whatever kind; more are closed at once.

    ``shared_port``: the system divides connections among all processes that listen on the port;
    otherwise a second server there is an error.
    """
    half = int(timeouts.keepalive_every * 500)
    options = [
        *_common(timeouts, SERVER_WINDOW),
        ("grpc.http2.min_ping_interval_without_data_ms", half),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", half),
        ("grpc.so_reuseport", int(shared_port)),
        # For those who connect and say nothing, or say no more after the handshake.
        ("grpc.server_handshake_timeout_ms", int(timeouts.handshake * 1000)),
        ("grpc.max_connection_idle_ms", int(timeouts.idle * 1000)),
        ("grpc.max_concurrent_streams", STREAMS),
    ]
    if connections is not None:
        options.append(("grpc.max_allowed_incoming_connections", connections))
    return options
