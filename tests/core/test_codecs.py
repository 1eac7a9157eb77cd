"""How large numbers are in the form in which they are sent."""

from __future__ import annotations

import pytest

from fedoptima.core.codecs import Codec, bytes_saved, coded_bytes


@pytest.mark.parametrize(("codec", "size"), [("float32", 96), ("bfloat16", 48), ("int8", 24 + 12)])
def test_int8_takes_a_byte_and_a_scale_for_each_row(codec: Codec, size: int) -> None:
    assert coded_bytes(codec, numbers=24, rows=3) == size
    assert bytes_saved(codec, numbers=24, rows=3) == 96 - size
