from odp.v1 import aggregator_pb2 as _aggregator_pb2
from odp.v1 import attestation_pb2 as _attestation_pb2
from odp.v1 import common_pb2 as _common_pb2
from odp.v1 import enclave_pb2 as _enclave_pb2
from odp.v1 import hand_over_pb2 as _hand_over_pb2
from odp.v1 import leaf_pb2 as _leaf_pb2
from odp.v1 import population_pb2 as _population_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AggregatorEnclaveRequest(_message.Message):
    __slots__ = ("start", "ask_nonce", "take_over", "reseal", "records", "contributions", "evidence", "ping", "rounds", "ledger", "commit", "set_charter", "charter", "check_task", "open_round", "round_key", "sealed_length", "submit", "sign_refusal", "announce", "charge", "host_parts", "give_piece", "seal_release", "take_piece", "release", "give_up", "abandon", "forget_task", "leaf_nonce", "delegate", "check_close", "give_part", "open_part", "close_part", "take_part", "erase_part", "begin_hand_over", "finish_hand_over")
    START_FIELD_NUMBER: _ClassVar[int]
    ASK_NONCE_FIELD_NUMBER: _ClassVar[int]
    TAKE_OVER_FIELD_NUMBER: _ClassVar[int]
    RESEAL_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    SET_CHARTER_FIELD_NUMBER: _ClassVar[int]
    CHARTER_FIELD_NUMBER: _ClassVar[int]
    CHECK_TASK_FIELD_NUMBER: _ClassVar[int]
    OPEN_ROUND_FIELD_NUMBER: _ClassVar[int]
    ROUND_KEY_FIELD_NUMBER: _ClassVar[int]
    SEALED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    SIGN_REFUSAL_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCE_FIELD_NUMBER: _ClassVar[int]
    CHARGE_FIELD_NUMBER: _ClassVar[int]
    HOST_PARTS_FIELD_NUMBER: _ClassVar[int]
    GIVE_PIECE_FIELD_NUMBER: _ClassVar[int]
    SEAL_RELEASE_FIELD_NUMBER: _ClassVar[int]
    TAKE_PIECE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    GIVE_UP_FIELD_NUMBER: _ClassVar[int]
    ABANDON_FIELD_NUMBER: _ClassVar[int]
    FORGET_TASK_FIELD_NUMBER: _ClassVar[int]
    LEAF_NONCE_FIELD_NUMBER: _ClassVar[int]
    DELEGATE_FIELD_NUMBER: _ClassVar[int]
    CHECK_CLOSE_FIELD_NUMBER: _ClassVar[int]
    GIVE_PART_FIELD_NUMBER: _ClassVar[int]
    OPEN_PART_FIELD_NUMBER: _ClassVar[int]
    CLOSE_PART_FIELD_NUMBER: _ClassVar[int]
    TAKE_PART_FIELD_NUMBER: _ClassVar[int]
    ERASE_PART_FIELD_NUMBER: _ClassVar[int]
    BEGIN_HAND_OVER_FIELD_NUMBER: _ClassVar[int]
    FINISH_HAND_OVER_FIELD_NUMBER: _ClassVar[int]
    start: _enclave_pb2.EnclaveStart
    ask_nonce: AskNonce
    take_over: TakeOver
    reseal: _enclave_pb2.SealedRecord
    records: SealedRecords
    contributions: StoredContributions
    evidence: _attestation_pb2.GetEvidenceRequest
    ping: _enclave_pb2.Ping
    rounds: AskRounds
    ledger: _aggregator_pb2.GetLedgerRequest
    commit: CommitWrites
    set_charter: _population_pb2.SignedCharter
    charter: AskCharter
    check_task: _aggregator_pb2.CheckTaskRequest
    open_round: _aggregator_pb2.OpenRoundRequest
    round_key: _aggregator_pb2.GetRoundRequest
    sealed_length: _aggregator_pb2.GetRoundRequest
    submit: SubmitBatch
    sign_refusal: _aggregator_pb2.SubmitRequest
    announce: AnnounceSurvivors
    charge: _aggregator_pb2.CloseRoundRequest
    host_parts: AskHostParts
    give_piece: GivePiece
    seal_release: SealRelease
    take_piece: TakePiece
    release: ReleaseRound
    give_up: _aggregator_pb2.GetRoundRequest
    abandon: _aggregator_pb2.AbandonTaskRequest
    forget_task: ForgetTask
    leaf_nonce: _leaf_pb2.AskLeafNonce
    delegate: _leaf_pb2.DelegateRound
    check_close: _leaf_pb2.CheckClose
    give_part: _leaf_pb2.GivePart
    open_part: _leaf_pb2.Delegation
    close_part: _aggregator_pb2.GetRoundRequest
    take_part: _leaf_pb2.TakePart
    erase_part: _aggregator_pb2.GetRoundRequest
    begin_hand_over: _hand_over_pb2.HandOverRequest
    finish_hand_over: _hand_over_pb2.HandOverRequest
    def __init__(self, start: _Optional[_Union[_enclave_pb2.EnclaveStart, _Mapping]] = ..., ask_nonce: _Optional[_Union[AskNonce, _Mapping]] = ..., take_over: _Optional[_Union[TakeOver, _Mapping]] = ..., reseal: _Optional[_Union[_enclave_pb2.SealedRecord, _Mapping]] = ..., records: _Optional[_Union[SealedRecords, _Mapping]] = ..., contributions: _Optional[_Union[StoredContributions, _Mapping]] = ..., evidence: _Optional[_Union[_attestation_pb2.GetEvidenceRequest, _Mapping]] = ..., ping: _Optional[_Union[_enclave_pb2.Ping, _Mapping]] = ..., rounds: _Optional[_Union[AskRounds, _Mapping]] = ..., ledger: _Optional[_Union[_aggregator_pb2.GetLedgerRequest, _Mapping]] = ..., commit: _Optional[_Union[CommitWrites, _Mapping]] = ..., set_charter: _Optional[_Union[_population_pb2.SignedCharter, _Mapping]] = ..., charter: _Optional[_Union[AskCharter, _Mapping]] = ..., check_task: _Optional[_Union[_aggregator_pb2.CheckTaskRequest, _Mapping]] = ..., open_round: _Optional[_Union[_aggregator_pb2.OpenRoundRequest, _Mapping]] = ..., round_key: _Optional[_Union[_aggregator_pb2.GetRoundRequest, _Mapping]] = ..., sealed_length: _Optional[_Union[_aggregator_pb2.GetRoundRequest, _Mapping]] = ..., submit: _Optional[_Union[SubmitBatch, _Mapping]] = ..., sign_refusal: _Optional[_Union[_aggregator_pb2.SubmitRequest, _Mapping]] = ..., announce: _Optional[_Union[AnnounceSurvivors, _Mapping]] = ..., charge: _Optional[_Union[_aggregator_pb2.CloseRoundRequest, _Mapping]] = ..., host_parts: _Optional[_Union[AskHostParts, _Mapping]] = ..., give_piece: _Optional[_Union[GivePiece, _Mapping]] = ..., seal_release: _Optional[_Union[SealRelease, _Mapping]] = ..., take_piece: _Optional[_Union[TakePiece, _Mapping]] = ..., release: _Optional[_Union[ReleaseRound, _Mapping]] = ..., give_up: _Optional[_Union[_aggregator_pb2.GetRoundRequest, _Mapping]] = ..., abandon: _Optional[_Union[_aggregator_pb2.AbandonTaskRequest, _Mapping]] = ..., forget_task: _Optional[_Union[ForgetTask, _Mapping]] = ..., leaf_nonce: _Optional[_Union[_leaf_pb2.AskLeafNonce, _Mapping]] = ..., delegate: _Optional[_Union[_leaf_pb2.DelegateRound, _Mapping]] = ..., check_close: _Optional[_Union[_leaf_pb2.CheckClose, _Mapping]] = ..., give_part: _Optional[_Union[_leaf_pb2.GivePart, _Mapping]] = ..., open_part: _Optional[_Union[_leaf_pb2.Delegation, _Mapping]] = ..., close_part: _Optional[_Union[_aggregator_pb2.GetRoundRequest, _Mapping]] = ..., take_part: _Optional[_Union[_leaf_pb2.TakePart, _Mapping]] = ..., erase_part: _Optional[_Union[_aggregator_pb2.GetRoundRequest, _Mapping]] = ..., begin_hand_over: _Optional[_Union[_hand_over_pb2.HandOverRequest, _Mapping]] = ..., finish_hand_over: _Optional[_Union[_hand_over_pb2.HandOverRequest, _Mapping]] = ...) -> None: ...

class AggregatorEnclaveReply(_message.Message):
    __slots__ = ("failure", "started", "want", "ready", "evidence", "done", "writes", "charter", "round_key", "sealed_length", "submitted", "charged", "host_parts", "piece", "released", "rounds", "ledger", "nonce", "delegation", "closed_part", "told", "package")
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    WANT_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    CHARTER_FIELD_NUMBER: _ClassVar[int]
    ROUND_KEY_FIELD_NUMBER: _ClassVar[int]
    SEALED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_FIELD_NUMBER: _ClassVar[int]
    CHARGED_FIELD_NUMBER: _ClassVar[int]
    HOST_PARTS_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    DELEGATION_FIELD_NUMBER: _ClassVar[int]
    CLOSED_PART_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    PACKAGE_FIELD_NUMBER: _ClassVar[int]
    failure: _enclave_pb2.Failure
    started: _enclave_pb2.Started
    want: WantContributions
    ready: _enclave_pb2.Ready
    evidence: _attestation_pb2.GetEvidenceResponse
    done: _enclave_pb2.Done
    writes: RecordWrites
    charter: _population_pb2.SignedCharter
    round_key: _common_pb2.SignedRoundKey
    sealed_length: SealedLength
    submitted: SubmittedBatch
    charged: ChargedRound
    host_parts: HostParts
    piece: SealedPiece
    released: ReleasedRound
    rounds: RoundStates
    ledger: _aggregator_pb2.GetLedgerResponse
    nonce: DrawnNonce
    delegation: _leaf_pb2.Delegation
    closed_part: _leaf_pb2.ClosedPart
    told: _leaf_pb2.Told
    package: _hand_over_pb2.HandOverPackage
    def __init__(self, failure: _Optional[_Union[_enclave_pb2.Failure, _Mapping]] = ..., started: _Optional[_Union[_enclave_pb2.Started, _Mapping]] = ..., want: _Optional[_Union[WantContributions, _Mapping]] = ..., ready: _Optional[_Union[_enclave_pb2.Ready, _Mapping]] = ..., evidence: _Optional[_Union[_attestation_pb2.GetEvidenceResponse, _Mapping]] = ..., done: _Optional[_Union[_enclave_pb2.Done, _Mapping]] = ..., writes: _Optional[_Union[RecordWrites, _Mapping]] = ..., charter: _Optional[_Union[_population_pb2.SignedCharter, _Mapping]] = ..., round_key: _Optional[_Union[_common_pb2.SignedRoundKey, _Mapping]] = ..., sealed_length: _Optional[_Union[SealedLength, _Mapping]] = ..., submitted: _Optional[_Union[SubmittedBatch, _Mapping]] = ..., charged: _Optional[_Union[ChargedRound, _Mapping]] = ..., host_parts: _Optional[_Union[HostParts, _Mapping]] = ..., piece: _Optional[_Union[SealedPiece, _Mapping]] = ..., released: _Optional[_Union[ReleasedRound, _Mapping]] = ..., rounds: _Optional[_Union[RoundStates, _Mapping]] = ..., ledger: _Optional[_Union[_aggregator_pb2.GetLedgerResponse, _Mapping]] = ..., nonce: _Optional[_Union[DrawnNonce, _Mapping]] = ..., delegation: _Optional[_Union[_leaf_pb2.Delegation, _Mapping]] = ..., closed_part: _Optional[_Union[_leaf_pb2.ClosedPart, _Mapping]] = ..., told: _Optional[_Union[_leaf_pb2.Told, _Mapping]] = ..., package: _Optional[_Union[_hand_over_pb2.HandOverPackage, _Mapping]] = ...) -> None: ...

class SealedRecords(_message.Message):
    __slots__ = ("records", "last")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[_enclave_pb2.SealedRecord]
    last: bool
    def __init__(self, records: _Optional[_Iterable[_Union[_enclave_pb2.SealedRecord, _Mapping]]] = ..., last: _Optional[bool] = ...) -> None: ...

class WantContributions(_message.Message):
    __slots__ = ("task_sha256", "round")
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    task_sha256: bytes
    round: int
    def __init__(self, task_sha256: _Optional[bytes] = ..., round: _Optional[int] = ...) -> None: ...

class StoredContributions(_message.Message):
    __slots__ = ("sealed", "last")
    SEALED_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    sealed: _containers.RepeatedScalarFieldContainer[bytes]
    last: bool
    def __init__(self, sealed: _Optional[_Iterable[bytes]] = ..., last: _Optional[bool] = ...) -> None: ...

class AskNonce(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrawnNonce(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    def __init__(self, nonce: _Optional[bytes] = ...) -> None: ...

class TakeOver(_message.Message):
    __slots__ = ("package", "log")
    PACKAGE_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    package: _hand_over_pb2.HandOverPackage
    log: _hand_over_pb2.LogExcerpt
    def __init__(self, package: _Optional[_Union[_hand_over_pb2.HandOverPackage, _Mapping]] = ..., log: _Optional[_Union[_hand_over_pb2.LogExcerpt, _Mapping]] = ...) -> None: ...

class RecordWrites(_message.Message):
    __slots__ = ("records",)
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[_enclave_pb2.SealedRecord]
    def __init__(self, records: _Optional[_Iterable[_Union[_enclave_pb2.SealedRecord, _Mapping]]] = ...) -> None: ...

class CommitWrites(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AskCharter(_message.Message):
    __slots__ = ("population",)
    POPULATION_FIELD_NUMBER: _ClassVar[int]
    population: str
    def __init__(self, population: _Optional[str] = ...) -> None: ...

class SealedLength(_message.Message):
    __slots__ = ("bytes", "refusal", "host_part")
    BYTES_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    HOST_PART_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    refusal: _aggregator_pb2.Refusal
    host_part: int
    def __init__(self, bytes: _Optional[int] = ..., refusal: _Optional[_Union[_aggregator_pb2.Refusal, str]] = ..., host_part: _Optional[int] = ...) -> None: ...

class SubmitBatch(_message.Message):
    __slots__ = ("submits",)
    SUBMITS_FIELD_NUMBER: _ClassVar[int]
    submits: _containers.RepeatedCompositeFieldContainer[_aggregator_pb2.SubmitRequest]
    def __init__(self, submits: _Optional[_Iterable[_Union[_aggregator_pb2.SubmitRequest, _Mapping]]] = ...) -> None: ...

class SubmittedBatch(_message.Message):
    __slots__ = ("refusals", "signatures")
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    refusals: bytes
    signatures: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, refusals: _Optional[bytes] = ..., signatures: _Optional[_Iterable[bytes]] = ...) -> None: ...

class AnnounceSurvivors(_message.Message):
    __slots__ = ("task_sha256", "round", "clients", "set_sha256")
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    SET_SHA256_FIELD_NUMBER: _ClassVar[int]
    task_sha256: bytes
    round: int
    clients: int
    set_sha256: bytes
    def __init__(self, task_sha256: _Optional[bytes] = ..., round: _Optional[int] = ..., clients: _Optional[int] = ..., set_sha256: _Optional[bytes] = ...) -> None: ...

class ChargedRound(_message.Message):
    __slots__ = ("task_sha256", "round", "contributions", "released", "writes", "host_part_bytes")
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    HOST_PART_BYTES_FIELD_NUMBER: _ClassVar[int]
    task_sha256: bytes
    round: int
    contributions: int
    released: bool
    writes: _containers.RepeatedCompositeFieldContainer[_enclave_pb2.SealedRecord]
    host_part_bytes: int
    def __init__(self, task_sha256: _Optional[bytes] = ..., round: _Optional[int] = ..., contributions: _Optional[int] = ..., released: _Optional[bool] = ..., writes: _Optional[_Iterable[_Union[_enclave_pb2.SealedRecord, _Mapping]]] = ..., host_part_bytes: _Optional[int] = ...) -> None: ...

class AskHostParts(_message.Message):
    __slots__ = ("task_sha256", "round", "start")
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    task_sha256: bytes
    round: int
    start: int
    def __init__(self, task_sha256: _Optional[bytes] = ..., round: _Optional[int] = ..., start: _Optional[int] = ...) -> None: ...

class HostParts(_message.Message):
    __slots__ = ("digests",)
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    digests: bytes
    def __init__(self, digests: _Optional[bytes] = ...) -> None: ...

class HostSum(_message.Message):
    __slots__ = ("sum", "set_sha256")
    SUM_FIELD_NUMBER: _ClassVar[int]
    SET_SHA256_FIELD_NUMBER: _ClassVar[int]
    sum: bytes
    set_sha256: bytes
    def __init__(self, sum: _Optional[bytes] = ..., set_sha256: _Optional[bytes] = ...) -> None: ...

class GivePiece(_message.Message):
    __slots__ = ("task_sha256", "round", "record", "number", "data")
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    task_sha256: bytes
    round: int
    record: bytes
    number: int
    data: bytes
    def __init__(self, task_sha256: _Optional[bytes] = ..., round: _Optional[int] = ..., record: _Optional[bytes] = ..., number: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class SealRelease(_message.Message):
    __slots__ = ("order", "noise", "host_sum", "stream")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    NOISE_FIELD_NUMBER: _ClassVar[int]
    HOST_SUM_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    order: bytes
    noise: bytes
    host_sum: HostSum
    stream: bytes
    def __init__(self, order: _Optional[bytes] = ..., noise: _Optional[bytes] = ..., host_sum: _Optional[_Union[HostSum, _Mapping]] = ..., stream: _Optional[bytes] = ...) -> None: ...

class TakePiece(_message.Message):
    __slots__ = ("key", "number")
    KEY_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    key: str
    number: int
    def __init__(self, key: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class SealedPiece(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class ReleaseRound(_message.Message):
    __slots__ = ("order", "stored")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    order: bytes
    stored: bytes
    def __init__(self, order: _Optional[bytes] = ..., stored: _Optional[bytes] = ...) -> None: ...

class ReleasedRound(_message.Message):
    __slots__ = ("signed_release",)
    SIGNED_RELEASE_FIELD_NUMBER: _ClassVar[int]
    signed_release: bytes
    def __init__(self, signed_release: _Optional[bytes] = ...) -> None: ...

class AskRounds(_message.Message):
    __slots__ = ("only",)
    ONLY_FIELD_NUMBER: _ClassVar[int]
    only: _aggregator_pb2.GetRoundRequest
    def __init__(self, only: _Optional[_Union[_aggregator_pb2.GetRoundRequest, _Mapping]] = ...) -> None: ...

class RoundStates(_message.Message):
    __slots__ = ("states",)
    STATES_FIELD_NUMBER: _ClassVar[int]
    states: _containers.RepeatedCompositeFieldContainer[RoundState]
    def __init__(self, states: _Optional[_Iterable[_Union[RoundState, _Mapping]]] = ...) -> None: ...

class RoundState(_message.Message):
    __slots__ = ("task_sha256", "round", "status", "contributions")
    class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATUS_UNSPECIFIED: _ClassVar[RoundState.Status]
        STATUS_OPEN: _ClassVar[RoundState.Status]
        STATUS_CHARGED: _ClassVar[RoundState.Status]
        STATUS_SEALED: _ClassVar[RoundState.Status]
        STATUS_RELEASED: _ClassVar[RoundState.Status]
        STATUS_VOID: _ClassVar[RoundState.Status]
    STATUS_UNSPECIFIED: RoundState.Status
    STATUS_OPEN: RoundState.Status
    STATUS_CHARGED: RoundState.Status
    STATUS_SEALED: RoundState.Status
    STATUS_RELEASED: RoundState.Status
    STATUS_VOID: RoundState.Status
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    task_sha256: bytes
    round: int
    status: RoundState.Status
    contributions: int
    def __init__(self, task_sha256: _Optional[bytes] = ..., round: _Optional[int] = ..., status: _Optional[_Union[RoundState.Status, str]] = ..., contributions: _Optional[int] = ...) -> None: ...

class ForgetTask(_message.Message):
    __slots__ = ("task_sha256",)
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    task_sha256: bytes
    def __init__(self, task_sha256: _Optional[bytes] = ...) -> None: ...
