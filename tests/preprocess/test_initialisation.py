from __future__ import annotations

import torch

from fedoptima.models.vgg5 import vgg5
from fedoptima.preprocess.auxiliary import build_auxiliary
from fedoptima.preprocess.cuts import cuttable
from fedoptima.preprocess.profile import profile, profile_module
from fedoptima.preprocess.split import DeviceSpeed, choose_split


def test_vgg5_on_testbed_a_is_split_after_its_first_block() -> None:
    torch.manual_seed(0)
    images = torch.rand(4, 3, 32, 32)
    blocks = cuttable(vgg5(), images)
    costs = profile(blocks, images)
    mbps = 1e6 / 8
    fleet = [DeviceSpeed(speed * 1e9, 50 * mbps) for speed in (1.5, 3, 6, 9)]
    choice = choose_split(costs, fleet, batch_size=100)
    assert choice.split == 1
    # 3.13 MiB at 50 Mbps (paper notes of VGG-5): 0.52 s
    assert round(choice.table[0].transfer_seconds, 2) == 0.52

    device_side = blocks.part(0, choice.split)
    activation = device_side(images)
    auxiliary = build_auxiliary(device_side, activation, 10)
    assert auxiliary is not None
    attached = profile_module(auxiliary, activation)
    measured = choose_split(
        costs, fleet, batch_size=100, objective="measured", auxiliary={1: attached}
    )
    first = costs.blocks[0]
    assert measured.table[0].device_flops == 100 * (
        first.forward_flops
        + first.backward_flops
        + attached.forward_flops
        + attached.backward_flops
    )
