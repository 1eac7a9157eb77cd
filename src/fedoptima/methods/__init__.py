"""The training methods, each a choice of five policies; and the names that one is written with.

docs/write-a-method.md shows how.
"""

from fedoptima.core.aggregation import (
    AggregationPolicy,
    AsyncStaleness,
    Buffered,
    Decision,
    DelayLimit,
    NoBarrier,
    Offer,
)
from fedoptima.core.barrier import Barrier
from fedoptima.core.codecs import Codecs
from fedoptima.core.flow import CappedFlow, FlowController, OpenFlow, Reception
from fedoptima.core.jobs import Merge, Part, ServerOptimizer
from fedoptima.core.messages import ModelUpdate, ProgramSpec
from fedoptima.core.method import Method, ServerTraining
from fedoptima.core.reuse import LeastUsed, NoReuse, ReusePolicy, ReuseRule
from fedoptima.core.scheduler import CounterScheduler, FifoScheduler, TaskScheduler
from fedoptima.core.serialization import stored
from fedoptima.core.staleness import StalenessRule

__all__ = [
    "AggregationPolicy",
    "AsyncStaleness",
    "Barrier",
    "Buffered",
    "CappedFlow",
    "Codecs",
    "CounterScheduler",
    "Decision",
    "DelayLimit",
    "FifoScheduler",
    "FlowController",
    "LeastUsed",
    "Merge",
    "Method",
    "ModelUpdate",
    "NoBarrier",
    "NoReuse",
    "Offer",
    "OpenFlow",
    "Part",
    "ProgramSpec",
    "Reception",
    "ReusePolicy",
    "ReuseRule",
    "ServerOptimizer",
    "ServerTraining",
    "StalenessRule",
    "TaskScheduler",
    "stored",
]
