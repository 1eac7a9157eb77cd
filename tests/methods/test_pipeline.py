"""PiPar's virtual time against a pipeline of a few plain lines."""

from __future__ import annotations

from itertools import pairwise

import pytest

from fedoptima.core.effects import Run, Send
from fedoptima.core.events import JobDone
from fedoptima.core.jobs import Backward, Forward
from fedoptima.core.messages import ActivationBatch, GradientBatch, nbytes
from fedoptima.core.types import NodeId
from tests.methods.runs import ALONE, play

ONLY = NodeId("only")
BANDWIDTH = 2e6 / 8  # bytes per second


def pipeline(
    forward: float,
    backward: float,
    server: float,
    sent: list[int],
    returned: list[int],
    latency: float,
) -> float:
    """Seconds of a mini-batch: every part's forward pass, then backward passes as answers come.

    ``sent`` and ``returned``: bytes of each part's activations and gradients.
    """
    device = uplink = at_server = downlink = 0.0
    answers = []
    for up, down in zip(sent, returned, strict=True):
        device += forward
        uplink = max(uplink, device) + up / BANDWIDTH
        at_server = max(at_server, uplink + latency) + server
        downlink = max(downlink, at_server) + down / BANDWIDTH
        answers.append(downlink + latency)
    for answer in answers:
        device = max(device, answer) + backward
    return device


@pytest.mark.parametrize("parts", [1, 2, 3, 5])
@pytest.mark.parametrize(
    ("forward", "backward", "server", "latency"),
    [
        (0.4, 0.7, 0.1, 0.0),  # the device is the slowest stage: answers come before the last part
        (0.01, 0.02, 0.9, 0.0),  # the server is
        (0.001, 0.001, 0.001, 0.0),  # the links are
        (0.1, 0.2, 0.05, 0.3),  # the way is long
    ],
    ids=["device", "server", "links", "latency"],
)
def test_a_mini_batch_takes_as_long_as_a_pipeline_of_a_few_plain_lines(
    parts: int, forward: float, backward: float, server: float, latency: float
) -> None:
    fleet = {
        "server": {"gflops": 1.0, "seconds": {"server_step": server}},
        "devices": [
            {
                "name": "only",
                "gflops": 1.0,
                "mbps": 2.0,
                "latency_ms": latency * 1000,
                "seconds": {"forward": forward, "backward": backward},
            }
        ],
    }
    run = play("pipar", rounds=1, rows=ALONE, fleet=fleet, micro_batches=parts)
    sizes: dict[type, list[int]] = {ActivationBatch: [], GradientBatch: []}
    began, ended = [], []
    for record in run.records:
        event = record.event
        if isinstance(event, JobDone) and isinstance(event.job, Backward) and event.job.apply:
            ended.append(record.at)
        for effect in record.effects:
            if isinstance(effect, Send) and type(effect.message) in sizes:
                sizes[type(effect.message)].append(nbytes(effect.message))
            first = isinstance(effect, Run) and isinstance(effect.job, Forward)
            if first and effect.job.part == 0:
                began.append(record.at)
    assert len(ended) == 23 // 5
    assert all(end == next_ for end, (_, next_) in zip(ended, pairwise(began), strict=False))
    for number, (begin, end) in enumerate(zip(began, ended, strict=True)):
        own = slice(number * parts, (number + 1) * parts)
        expected = pipeline(
            forward / parts,
            backward / parts,
            server / parts,
            sizes[ActivationBatch][own],
            sizes[GradientBatch][own],
            latency,
        )
        assert end - begin == pytest.approx(expected)
