"""FedAsync: every device trains the whole model; each update is merged as it arrives."""

from __future__ import annotations

from functools import partial

from fedoptima.core.aggregation import AsyncStaleness
from fedoptima.core.codecs import Codecs
from fedoptima.core.flow import OpenFlow
from fedoptima.core.messages import ProgramSpec
from fedoptima.core.method import Method, ServerTraining
from fedoptima.core.scheduler import FifoScheduler
from fedoptima.core.staleness import AlphaDecay, StalenessRule
from fedoptima.methods.options import (
    AlphaDecayAtOption,
    AlphaDecayOption,
    AlphaMaxOption,
    AlphaOption,
    MaxDelayOption,
    ResetOptimizerOption,
    RhoOption,
    RobustOption,
    StalenessAOption,
    StalenessBOption,
    StalenessOption,
    UpdateCodecOption,
    delay_limit_of,
)
from fedoptima.methods.proximal import proximal_loss


def fedasync(
    devices: int,
    *,
    max_delay: MaxDelayOption = None,
    staleness: StalenessOption = "polynomial",
    alpha: AlphaOption = 0.8,
    alpha_max: AlphaMaxOption = 1.0,
    alpha_decay: AlphaDecayOption = 1.0,
    alpha_decay_at: AlphaDecayAtOption = (),
    staleness_a: StalenessAOption = None,
    staleness_b: StalenessBOption = 4.0,
    rho: RhoOption = 0.0,
    reset_optimizer: ResetOptimizerOption = False,
    update_codec: UpdateCodecOption = "float32",
    robust: RobustOption = "none",
) -> Method:
    limit = delay_limit_of(max_delay, devices)
    rule = StalenessRule(staleness, alpha, staleness_a, staleness_b, alpha_max)
    decay = AlphaDecay(alpha_decay, alpha_decay_at)
    return Method(
        name="fedasync",
        program=ProgramSpec("full"),
        training=ServerTraining.NONE,
        aggregation=partial(AsyncStaleness, limit, rule, decay),
        scheduler=FifoScheduler,
        flow=OpenFlow,
        robust=robust,
        codecs=Codecs(updates=update_codec),
        reset_optimizer=reset_optimizer,
        local_loss=proximal_loss(rho),
        resolved={"max_delay": limit.merges, "staleness_a": rule.slope},
    )
