from __future__ import annotations

import json
import socket
from pathlib import Path

from tests.cli.conftest import Call


def test_every_line_says_ok_or_the_way_out(call: Call) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    answer = call("doctor", "--listen", f"127.0.0.1:{port}")
    assert answer.code == 0
    assert f"ok      port: 127.0.0.1:{port} is free" in answer.out
    for what in ("Python", "torch", "GPU", "extra deploy", "data", "open files", "clock"):
        assert f"{what}: " in answer.out
    for line in answer.out.splitlines():
        assert line.startswith(("ok ", "missing ", "        "))


def test_what_is_wrong_is_said_with_the_way_out(call: Call, tmp_path: Path) -> None:
    assert call("certs", "init", "--out", "certs", "--days", "3").code == 0
    assert call("certs", "device", "pi-1", "--out", "certs", "--days", "3").code == 0
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        answer = call("doctor", "--listen", where, "--certs", "certs")
    assert answer.code == 1
    assert f"wrong   port: {where} cannot be listened on" in answer.out
    assert "Stop it, or choose another port" in answer.words
    assert "certificate server.pem: of " in answer.words
    assert "certificate pi-1.pem: of pi-1, until " in answer.words
    assert "ends soon: make a new one with fedoptima certs" in answer.words
    (tmp_path / "empty").mkdir()
    answer = call("doctor", "--listen", "127.0.0.1:0", "--certs", "empty", "--json")
    assert answer.code == 1
    assert json.loads(answer.out)[-1]["way_out"] == "fedoptima certs init --out empty"
