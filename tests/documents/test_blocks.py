from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents import blocks
from tests.documents.blocks import Block, blocks_of

TEXT = """
```sh
fedoptima plan a.toml   # a comment
fedoptima simulate a.toml \\
    --dry; fedoptima methods
```

<!-- not executed where it says "cuda": needs a GPU -->
<!-- not executed where it says "ray": needs a cluster -->
```sh
fedoptima simulate a.toml --device cuda
fedoptima sweep a.toml --on ray
fedoptima fleets
```

<!-- not executed: takes an hour -->
```python
train()
```

Text between a comment and a block ends what the comment says.

```python
1 / 0
```
"""


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Block]:
    monkeypatch.setattr(blocks, "ROOT", tmp_path)
    document = tmp_path / "a.md"
    document.write_text(TEXT)
    return list(blocks_of(document))


def test_commands_are_joined_over_lines_and_come_without_comments(found: list[Block]) -> None:
    assert found[0].place == "a.md:2"
    assert found[0].commands == [
        "fedoptima plan a.toml",
        "fedoptima simulate a.toml  --dry",
        "fedoptima methods",
    ]


def test_a_comment_leaves_out_the_lines_that_it_names_or_the_block(found: list[Block]) -> None:
    assert found[1].commands == ["fedoptima fleets"]
    assert len(found[1].all_commands) == 3
    assert found[2].skipped == ("",)
    assert found[3].skipped == ()
