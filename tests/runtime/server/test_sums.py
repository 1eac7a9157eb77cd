"""A server that adds updates up as they come, and is stopped between two of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedoptima.core.messages import GlobalModel, HandIn, Message, ModelUpdate
from fedoptima.core.types import NodeId, Payload, PayloadId
from fedoptima.engine.payloads import unpack
from fedoptima.experiments.server_setup import ServerSetup, prepare_server
from tests.support.network import tiny_recipe
from tests.support.stage import JOIN, Stage, sent

FAST, SLOW = NodeId("fast"), NodeId("slow")


@pytest.fixture
def sums() -> ServerSetup:
    method = {"name": "fl", "on_leave": "keep"}
    stop = {"rounds": 9, "hours": 1.0}
    return prepare_server(tiny_recipe(method=method, deploy={"devices": 2}, stop=stop))


def moved(device: NodeId, model: Message, by: float) -> ModelUpdate:
    assert isinstance(model, GlobalModel)
    tensors = {
        name: tensor + by if tensor.is_floating_point() else tensor
        for name, tensor in unpack(model.data).items()
    }
    data = Payload(PayloadId(f"{device}/0/1"), model.data.nbytes, tensors)
    return ModelUpdate(model.version, 32, data)


@pytest.mark.parametrize("interrupted", [False, True])
@pytest.mark.parametrize("short_here", [False, True])
def test_a_checkpoint_between_an_update_and_its_effects_has_it_in_the_sum(
    short_here: bool, interrupted: bool, tmp_path: Path, sums: ServerSetup
) -> None:
    async def story() -> None:
        stage = Stage(tmp_path, sums, short_here=short_here)
        sessions = {name: stage.connect("p", name) for name in (FAST, SLOW)}
        for session in sessions.values():
            stage.node.receive(session, JOIN)
        await stage.until(lambda: all(sent(s, GlobalModel) for s in sessions.values()))
        (model,) = sent(sessions[SLOW], GlobalModel)
        first = moved(FAST, model, 1.0)
        stage.checkpointer.wanted = not interrupted
        stage.node.receive(sessions[FAST], first)
        stage.checkpointer.wanted = False
        if interrupted:
            stage.node.interrupt()
        await stage.end()

        found, engine = stage.kept(sums)
        assert engine._sum.weight == 32
        later = Stage(tmp_path, sums, restored=found, engine=engine)
        later.node.resume_from(found, found.core.progress.rule)
        back = {name: later.connect("q", name) for name in (FAST, SLOW)}
        later.node.receive(back[FAST], replace(JOIN, pending=first.data.id))
        later.node.receive(back[SLOW], replace(JOIN, training=True))
        later.node.receive(back[SLOW], moved(SLOW, model, 2.0))
        await later.until(lambda: all(sent(s, GlobalModel) for s in back.values()))
        assert not sent(back[FAST], HandIn)  # it was not asked for its update again
        (merged,) = sent(back[FAST], GlobalModel)
        await later.end()
        assert isinstance(merged, GlobalModel)
        assert isinstance(model, GlobalModel)
        for name, tensor in unpack(model.data).items():
            expected = tensor + 1.5 if tensor.is_floating_point() else tensor
            torch.testing.assert_close(unpack(merged.data)[name], expected)

    asyncio.run(story())
