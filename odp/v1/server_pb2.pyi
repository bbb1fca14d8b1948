from odp.v1 import common_pb2 as _common_pb2
from odp.v1 import enrolment_pb2 as _enrolment_pb2
from odp.v1 import log_pb2 as _log_pb2
from odp.v1 import population_pb2 as _population_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CheckInRequest(_message.Message):
    __slots__ = ("population",)
    POPULATION_FIELD_NUMBER: _ClassVar[int]
    population: str
    def __init__(self, population: _Optional[str] = ...) -> None: ...

class CheckInResponse(_message.Message):
    __slots__ = ("assignment", "retry", "local")
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    LOCAL_FIELD_NUMBER: _ClassVar[int]
    assignment: Assignment
    retry: RetryWindow
    local: LocalAssignment
    def __init__(self, assignment: _Optional[_Union[Assignment, _Mapping]] = ..., retry: _Optional[_Union[RetryWindow, _Mapping]] = ..., local: _Optional[_Union[LocalAssignment, _Mapping]] = ...) -> None: ...

class LocalAssignment(_message.Message):
    __slots__ = ("task", "log", "charter", "token_key", "issuer_address", "period")
    TASK_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    CHARTER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_KEY_FIELD_NUMBER: _ClassVar[int]
    ISSUER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PERIOD_FIELD_NUMBER: _ClassVar[int]
    task: _common_pb2.SignedTask
    log: _log_pb2.LogProof
    charter: _population_pb2.SignedCharter
    token_key: _enrolment_pb2.SignedTokenKey
    issuer_address: str
    period: int
    def __init__(self, task: _Optional[_Union[_common_pb2.SignedTask, _Mapping]] = ..., log: _Optional[_Union[_log_pb2.LogProof, _Mapping]] = ..., charter: _Optional[_Union[_population_pb2.SignedCharter, _Mapping]] = ..., token_key: _Optional[_Union[_enrolment_pb2.SignedTokenKey, _Mapping]] = ..., issuer_address: _Optional[str] = ..., period: _Optional[int] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("task", "round", "model", "distributor_address", "aggregator_address", "log", "charter", "round_key", "token_key", "issuer_address", "leaf_addresses")
    TASK_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DISTRIBUTOR_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    AGGREGATOR_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    CHARTER_FIELD_NUMBER: _ClassVar[int]
    ROUND_KEY_FIELD_NUMBER: _ClassVar[int]
    TOKEN_KEY_FIELD_NUMBER: _ClassVar[int]
    ISSUER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LEAF_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    task: _common_pb2.SignedTask
    round: int
    model: _common_pb2.SignedManifest
    distributor_address: str
    aggregator_address: str
    log: _log_pb2.LogProof
    charter: _population_pb2.SignedCharter
    round_key: _common_pb2.SignedRoundKey
    token_key: _enrolment_pb2.SignedTokenKey
    issuer_address: str
    leaf_addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, task: _Optional[_Union[_common_pb2.SignedTask, _Mapping]] = ..., round: _Optional[int] = ..., model: _Optional[_Union[_common_pb2.SignedManifest, _Mapping]] = ..., distributor_address: _Optional[str] = ..., aggregator_address: _Optional[str] = ..., log: _Optional[_Union[_log_pb2.LogProof, _Mapping]] = ..., charter: _Optional[_Union[_population_pb2.SignedCharter, _Mapping]] = ..., round_key: _Optional[_Union[_common_pb2.SignedRoundKey, _Mapping]] = ..., token_key: _Optional[_Union[_enrolment_pb2.SignedTokenKey, _Mapping]] = ..., issuer_address: _Optional[str] = ..., leaf_addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class RetryWindow(_message.Message):
    __slots__ = ("min_seconds", "max_seconds", "without_task")
    MIN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MAX_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_TASK_FIELD_NUMBER: _ClassVar[int]
    min_seconds: int
    max_seconds: int
    without_task: bool
    def __init__(self, min_seconds: _Optional[int] = ..., max_seconds: _Optional[int] = ..., without_task: _Optional[bool] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("population", "of_examples")
    POPULATION_FIELD_NUMBER: _ClassVar[int]
    OF_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    population: str
    of_examples: bool
    def __init__(self, population: _Optional[str] = ..., of_examples: _Optional[bool] = ...) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("task", "model", "distributor_address", "log", "charter")
    TASK_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DISTRIBUTOR_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    CHARTER_FIELD_NUMBER: _ClassVar[int]
    task: _common_pb2.SignedTask
    model: _common_pb2.SignedManifest
    distributor_address: str
    log: _log_pb2.LogProof
    charter: _population_pb2.SignedCharter
    def __init__(self, task: _Optional[_Union[_common_pb2.SignedTask, _Mapping]] = ..., model: _Optional[_Union[_common_pb2.SignedManifest, _Mapping]] = ..., distributor_address: _Optional[str] = ..., log: _Optional[_Union[_log_pb2.LogProof, _Mapping]] = ..., charter: _Optional[_Union[_population_pb2.SignedCharter, _Mapping]] = ...) -> None: ...

class SubmitTaskRequest(_message.Message):
    __slots__ = ("definition", "item_features")
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    ITEM_FEATURES_FIELD_NUMBER: _ClassVar[int]
    definition: _common_pb2.TaskDefinition
    item_features: bytes
    def __init__(self, definition: _Optional[_Union[_common_pb2.TaskDefinition, _Mapping]] = ..., item_features: _Optional[bytes] = ...) -> None: ...

class SubmitTaskResponse(_message.Message):
    __slots__ = ("task_sha256",)
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    task_sha256: bytes
    def __init__(self, task_sha256: _Optional[bytes] = ...) -> None: ...

class GetTaskRequest(_message.Message):
    __slots__ = ("task_sha256",)
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    task_sha256: bytes
    def __init__(self, task_sha256: _Optional[bytes] = ...) -> None: ...

class GetTaskResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: TaskStatus
    def __init__(self, status: _Optional[_Union[TaskStatus, _Mapping]] = ...) -> None: ...

class ListTasksRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTasksResponse(_message.Message):
    __slots__ = ("tasks",)
    TASKS_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[TaskStatus]
    def __init__(self, tasks: _Optional[_Iterable[_Union[TaskStatus, _Mapping]]] = ...) -> None: ...

class CancelTaskRequest(_message.Message):
    __slots__ = ("task_sha256",)
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    task_sha256: bytes
    def __init__(self, task_sha256: _Optional[bytes] = ...) -> None: ...

class CancelTaskResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PauseTaskRequest(_message.Message):
    __slots__ = ("task_sha256",)
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    task_sha256: bytes
    def __init__(self, task_sha256: _Optional[bytes] = ...) -> None: ...

class PauseTaskResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeTaskRequest(_message.Message):
    __slots__ = ("task_sha256",)
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    task_sha256: bytes
    def __init__(self, task_sha256: _Optional[bytes] = ...) -> None: ...

class ResumeTaskResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetPopulationRequest(_message.Message):
    __slots__ = ("population",)
    POPULATION_FIELD_NUMBER: _ClassVar[int]
    population: str
    def __init__(self, population: _Optional[str] = ...) -> None: ...

class GetPopulationResponse(_message.Message):
    __slots__ = ("charter", "server_key")
    CHARTER_FIELD_NUMBER: _ClassVar[int]
    SERVER_KEY_FIELD_NUMBER: _ClassVar[int]
    charter: _population_pb2.SignedCharter
    server_key: bytes
    def __init__(self, charter: _Optional[_Union[_population_pb2.SignedCharter, _Mapping]] = ..., server_key: _Optional[bytes] = ...) -> None: ...

class ChangePopulationRequest(_message.Message):
    __slots__ = ("charter",)
    CHARTER_FIELD_NUMBER: _ClassVar[int]
    charter: _population_pb2.SignedCharter
    def __init__(self, charter: _Optional[_Union[_population_pb2.SignedCharter, _Mapping]] = ...) -> None: ...

class ChangePopulationResponse(_message.Message):
    __slots__ = ("charter", "missing")
    CHARTER_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    charter: _population_pb2.SignedCharter
    missing: int
    def __init__(self, charter: _Optional[_Union[_population_pb2.SignedCharter, _Mapping]] = ..., missing: _Optional[int] = ...) -> None: ...

class TaskStatus(_message.Message):
    __slots__ = ("task", "state", "failure", "rounds", "planned_rounds", "model", "distributor_address", "aggregator_address", "waits_for", "epsilon_spent", "reports", "paused")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[TaskStatus.State]
        STATE_ACTIVE: _ClassVar[TaskStatus.State]
        STATE_CANCELLING: _ClassVar[TaskStatus.State]
        STATE_FINISHED: _ClassVar[TaskStatus.State]
        STATE_CANCELLED: _ClassVar[TaskStatus.State]
        STATE_FAILED: _ClassVar[TaskStatus.State]
    STATE_UNSPECIFIED: TaskStatus.State
    STATE_ACTIVE: TaskStatus.State
    STATE_CANCELLING: TaskStatus.State
    STATE_FINISHED: TaskStatus.State
    STATE_CANCELLED: TaskStatus.State
    STATE_FAILED: TaskStatus.State
    TASK_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    PLANNED_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DISTRIBUTOR_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    AGGREGATOR_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    EPSILON_SPENT_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    task: _common_pb2.SignedTask
    state: TaskStatus.State
    failure: str
    rounds: _containers.RepeatedCompositeFieldContainer[RoundStatus]
    planned_rounds: int
    model: _common_pb2.SignedManifest
    distributor_address: str
    aggregator_address: str
    waits_for: TaskWait
    epsilon_spent: float
    reports: int
    paused: bool
    def __init__(self, task: _Optional[_Union[_common_pb2.SignedTask, _Mapping]] = ..., state: _Optional[_Union[TaskStatus.State, str]] = ..., failure: _Optional[str] = ..., rounds: _Optional[_Iterable[_Union[RoundStatus, _Mapping]]] = ..., planned_rounds: _Optional[int] = ..., model: _Optional[_Union[_common_pb2.SignedManifest, _Mapping]] = ..., distributor_address: _Optional[str] = ..., aggregator_address: _Optional[str] = ..., waits_for: _Optional[_Union[TaskWait, _Mapping]] = ..., epsilon_spent: _Optional[float] = ..., reports: _Optional[int] = ..., paused: _Optional[bool] = ...) -> None: ...

class TaskWait(_message.Message):
    __slots__ = ("reason", "until")
    REASON_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    reason: str
    until: float
    def __init__(self, reason: _Optional[str] = ..., until: _Optional[float] = ...) -> None: ...

class RoundStatus(_message.Message):
    __slots__ = ("round", "state", "contributions", "opened", "closed", "release")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[RoundStatus.State]
        STATE_OPEN: _ClassVar[RoundStatus.State]
        STATE_RELEASED: _ClassVar[RoundStatus.State]
        STATE_APPLIED: _ClassVar[RoundStatus.State]
    STATE_UNSPECIFIED: RoundStatus.State
    STATE_OPEN: RoundStatus.State
    STATE_RELEASED: RoundStatus.State
    STATE_APPLIED: RoundStatus.State
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    round: int
    state: RoundStatus.State
    contributions: int
    opened: float
    closed: float
    release: _common_pb2.SignedRelease
    def __init__(self, round: _Optional[int] = ..., state: _Optional[_Union[RoundStatus.State, str]] = ..., contributions: _Optional[int] = ..., opened: _Optional[float] = ..., closed: _Optional[float] = ..., release: _Optional[_Union[_common_pb2.SignedRelease, _Mapping]] = ...) -> None: ...
