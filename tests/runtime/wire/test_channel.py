"""gRPC's settings, as far as a mistake in them would not be noticed otherwise."""

from __future__ import annotations

import pytest

from fedoptima.runtime.timeouts import DEFAULT
from fedoptima.runtime.wire.channel import Options, client_options, server_options
from fedoptima.runtime.wire.codec import CHUNK_BYTES


@pytest.mark.parametrize("options", [client_options(DEFAULT), server_options(DEFAULT)])
def test_without_probing_pings_the_window_has_room_for_several_chunks(options: Options) -> None:
    found = dict(options)
    assert found["grpc.http2.bdp_probe"] == 0
    assert found["grpc.http2.lookahead_bytes"] >= 4 * CHUNK_BYTES
