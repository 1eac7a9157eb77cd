"""Record what a server and a device say to each other, for tests of mixed versions.

    python -m tools.stored_stream 127.0.0.1:50051 127.0.0.1:50052 stream.gz

A relay: devices connect to the second address, and what is said until one has left is written to
the file, frame by frame. It knows nothing of fedoptima but the stream's name, so server and device
may be of any release. How tests/stored has been made is told in its README.
"""

from __future__ import annotations

import argparse
import gzip
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import grpc

PATH = "/fedoptima.v1.Fleet/Session"
UP, DOWN = b">", b"<"  # from the device, from the server
_LENGTH = struct.Struct(">I")


def read(file: Path) -> Iterator[tuple[bytes, bytes]]:
    """Direction and frame, in order."""
    with gzip.open(file) as stream:
        while direction := stream.read(1):
            (length,) = _LENGTH.unpack(stream.read(_LENGTH.size))
            yield direction, stream.read(length)


class _Relay(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, server: str, file: IO[bytes]) -> None:
        channel = grpc.insecure_channel(server)
        self._onward = channel.stream_stream(
            PATH, request_serializer=None, response_deserializer=None
        )
        self._file = file
        self._lock = threading.Lock()
        self.done = threading.Event()

    def service(self, details: Any) -> Any:
        return grpc.stream_stream_rpc_method_handler(self._serve)

    def _serve(self, frames: Iterator[bytes], context: Any) -> Iterator[bytes]:
        try:
            yield from self._noted(DOWN, self._onward(self._noted(UP, frames)))
        finally:
            self.done.set()

    def _noted(self, direction: bytes, frames: Iterator[bytes]) -> Iterator[bytes]:
        for frame in frames:
            with self._lock:
                self._file.write(direction + _LENGTH.pack(len(frame)) + frame)
            yield frame


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.stored_stream", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("server", help="where the server listens")
    parser.add_argument("listen", help="where the device connects to")
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    with options.file.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as file:
        relay = _Relay(options.server, file)
        door = grpc.server(ThreadPoolExecutor(4), handlers=[relay])
        door.add_insecure_port(options.listen)
        door.start()
        relay.done.wait()
        door.stop(1.0).wait()


if __name__ == "__main__":
    main()
