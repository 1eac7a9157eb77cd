from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Frame(_message.Message):
    __slots__ = ("hello", "welcome", "probe", "probe_ack", "ping", "pong", "telemetry", "telemetry_ack", "head", "chunk")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    PROBE_ACK_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    TELEMETRY_FIELD_NUMBER: _ClassVar[int]
    TELEMETRY_ACK_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    welcome: Welcome
    probe: Probe
    probe_ack: ProbeAck
    ping: Ping
    pong: Pong
    telemetry: Telemetry
    telemetry_ack: TelemetryAck
    head: Head
    chunk: Chunk
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., probe: _Optional[_Union[Probe, _Mapping]] = ..., probe_ack: _Optional[_Union[ProbeAck, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ..., telemetry: _Optional[_Union[Telemetry, _Mapping]] = ..., telemetry_ack: _Optional[_Union[TelemetryAck, _Mapping]] = ..., head: _Optional[_Union[Head, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("schema", "name", "process", "version", "last_session", "run", "inline")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LAST_SESSION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    INLINE_FIELD_NUMBER: _ClassVar[int]
    schema: int
    name: str
    process: str
    version: str
    last_session: int
    run: str
    inline: int
    def __init__(self, schema: _Optional[int] = ..., name: _Optional[str] = ..., process: _Optional[str] = ..., version: _Optional[str] = ..., last_session: _Optional[int] = ..., run: _Optional[str] = ..., inline: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("run", "session", "recipe", "records", "version", "inline")
    RUN_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RECIPE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INLINE_FIELD_NUMBER: _ClassVar[int]
    run: str
    session: int
    recipe: str
    records: int
    version: str
    inline: int
    def __init__(self, run: _Optional[str] = ..., session: _Optional[int] = ..., recipe: _Optional[str] = ..., records: _Optional[int] = ..., version: _Optional[str] = ..., inline: _Optional[int] = ...) -> None: ...

class Probe(_message.Message):
    __slots__ = ("data", "last")
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    last: bool
    def __init__(self, data: _Optional[bytes] = ..., last: bool = ...) -> None: ...

class ProbeAck(_message.Message):
    __slots__ = ("nbytes",)
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    nbytes: int
    def __init__(self, nbytes: _Optional[int] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("sent",)
    SENT_FIELD_NUMBER: _ClassVar[int]
    sent: float
    def __init__(self, sent: _Optional[float] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ("sent", "device_time")
    SENT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_TIME_FIELD_NUMBER: _ClassVar[int]
    sent: float
    device_time: float
    def __init__(self, sent: _Optional[float] = ..., device_time: _Optional[float] = ...) -> None: ...

class Telemetry(_message.Message):
    __slots__ = ("first", "lines")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    first: int
    lines: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, first: _Optional[int] = ..., lines: _Optional[_Iterable[str]] = ...) -> None: ...

class TelemetryAck(_message.Message):
    __slots__ = ("records",)
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    records: int
    def __init__(self, records: _Optional[int] = ...) -> None: ...

class Head(_message.Message):
    __slots__ = ("lane", "header", "data", "join", "activation_batch", "model_update", "failed", "assignment", "turn_on", "hand_in", "gradient_batch", "global_model", "stop")
    LANE_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    JOIN_FIELD_NUMBER: _ClassVar[int]
    ACTIVATION_BATCH_FIELD_NUMBER: _ClassVar[int]
    MODEL_UPDATE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    TURN_ON_FIELD_NUMBER: _ClassVar[int]
    HAND_IN_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_BATCH_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_MODEL_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    lane: int
    header: bytes
    data: bytes
    join: Join
    activation_batch: ActivationBatch
    model_update: ModelUpdate
    failed: Failed
    assignment: Assignment
    turn_on: TurnOn
    hand_in: HandIn
    gradient_batch: GradientBatch
    global_model: GlobalModel
    stop: Stop
    def __init__(self, lane: _Optional[int] = ..., header: _Optional[bytes] = ..., data: _Optional[bytes] = ..., join: _Optional[_Union[Join, _Mapping]] = ..., activation_batch: _Optional[_Union[ActivationBatch, _Mapping]] = ..., model_update: _Optional[_Union[ModelUpdate, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ..., assignment: _Optional[_Union[Assignment, _Mapping]] = ..., turn_on: _Optional[_Union[TurnOn, _Mapping]] = ..., hand_in: _Optional[_Union[HandIn, _Mapping]] = ..., gradient_batch: _Optional[_Union[GradientBatch, _Mapping]] = ..., global_model: _Optional[_Union[GlobalModel, _Mapping]] = ..., stop: _Optional[_Union[Stop, _Mapping]] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("lane", "data")
    LANE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    lane: int
    data: bytes
    def __init__(self, lane: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Payload(_message.Message):
    __slots__ = ("id", "nbytes")
    ID_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    id: str
    nbytes: int
    def __init__(self, id: _Optional[str] = ..., nbytes: _Optional[int] = ...) -> None: ...

class ProgramSpec(_message.Message):
    __slots__ = ("kind", "micro_batches", "delta", "train_every", "overlap", "cut")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCHES_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    TRAIN_EVERY_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    kind: str
    micro_batches: int
    delta: bool
    train_every: int
    overlap: bool
    cut: int
    def __init__(self, kind: _Optional[str] = ..., micro_batches: _Optional[int] = ..., delta: bool = ..., train_every: _Optional[int] = ..., overlap: bool = ..., cut: _Optional[int] = ...) -> None: ...

class Join(_message.Message):
    __slots__ = ("incarnation", "samples", "flops_per_second", "bytes_per_second", "version", "training", "pending", "step", "cut")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    FLOPS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    samples: int
    flops_per_second: float
    bytes_per_second: float
    version: int
    training: bool
    pending: str
    step: int
    cut: int
    def __init__(self, incarnation: _Optional[int] = ..., samples: _Optional[int] = ..., flops_per_second: _Optional[float] = ..., bytes_per_second: _Optional[float] = ..., version: _Optional[int] = ..., training: bool = ..., pending: _Optional[str] = ..., step: _Optional[int] = ..., cut: _Optional[int] = ...) -> None: ...

class ActivationBatch(_message.Message):
    __slots__ = ("seq", "data", "part", "parts", "cut")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    seq: int
    data: Payload
    part: int
    parts: int
    cut: int
    def __init__(self, seq: _Optional[int] = ..., data: _Optional[_Union[Payload, _Mapping]] = ..., part: _Optional[int] = ..., parts: _Optional[int] = ..., cut: _Optional[int] = ...) -> None: ...

class ModelUpdate(_message.Message):
    __slots__ = ("version", "trained", "data", "forwarded", "cut", "seconds", "bytes_per_second")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    version: int
    trained: int
    data: Payload
    forwarded: int
    cut: int
    seconds: float
    bytes_per_second: float
    def __init__(self, version: _Optional[int] = ..., trained: _Optional[int] = ..., data: _Optional[_Union[Payload, _Mapping]] = ..., forwarded: _Optional[int] = ..., cut: _Optional[int] = ..., seconds: _Optional[float] = ..., bytes_per_second: _Optional[float] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("error", "diverged")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DIVERGED_FIELD_NUMBER: _ClassVar[int]
    error: str
    diverged: bool
    def __init__(self, error: _Optional[str] = ..., diverged: bool = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("plan", "program", "iterations")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    plan: str
    program: ProgramSpec
    iterations: int
    def __init__(self, plan: _Optional[str] = ..., program: _Optional[_Union[ProgramSpec, _Mapping]] = ..., iterations: _Optional[int] = ...) -> None: ...

class TurnOn(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HandIn(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GradientBatch(_message.Message):
    __slots__ = ("seq", "part", "data")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    seq: int
    part: int
    data: Payload
    def __init__(self, seq: _Optional[int] = ..., part: _Optional[int] = ..., data: _Optional[_Union[Payload, _Mapping]] = ...) -> None: ...

class GlobalModel(_message.Message):
    __slots__ = ("version", "progress", "data")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    version: int
    progress: float
    data: Payload
    def __init__(self, version: _Optional[int] = ..., progress: _Optional[float] = ..., data: _Optional[_Union[Payload, _Mapping]] = ...) -> None: ...

class Stop(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...
