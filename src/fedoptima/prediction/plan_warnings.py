"""What of a plan a user should know, before anything is simulated."""

from __future__ import annotations

from collections.abc import Iterator

from fedoptima.analysis.formatting import listed
from fedoptima.core.plan import Plan


def plan_warnings(plan: Plan) -> Iterator[str]:
    yield from _auxiliary_warning(plan)
    yield from _unknown_work(plan)


def _auxiliary_warning(plan: Plan) -> Iterator[str]:
    server = sum(block.parameters for block in plan.server_blocks)
    extra = plan.auxiliary_profile
    if extra is not None and extra.parameters > server:
        yield (
            f"the auxiliary network has {extra.parameters:,} parameters, more than the whole "
            f"server side ({server:,}); choose a smaller split.at or method.auxiliary = "
            '"classifier"'
        )


def _unknown_work(plan: Plan) -> Iterator[str]:
    names = {name for operations in plan.by_formula.values() for name in operations}
    foreign = sorted(name for name in names if not name.startswith("aten::"))
    if foreign:
        yield (
            f"the work of {listed(foreign)} is not known, and is taken as one FLOP for each "
            "element written; register a formula (torch.utils.flop_counter.register_flop_formula) "
            "or give measured times of jobs in the fleet (seconds)"
        )
