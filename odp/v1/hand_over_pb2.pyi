from odp.v1 import attestation_pb2 as _attestation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LogExcerpt(_message.Message):
    __slots__ = ("checkpoint", "leaves", "endorsements")
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    ENDORSEMENTS_FIELD_NUMBER: _ClassVar[int]
    checkpoint: bytes
    leaves: bytes
    endorsements: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, checkpoint: _Optional[bytes] = ..., leaves: _Optional[bytes] = ..., endorsements: _Optional[_Iterable[bytes]] = ...) -> None: ...

class HandOverStatement(_message.Message):
    __slots__ = ("predecessor_image", "chip_id", "successor_image", "policy_sha256", "populations")
    PREDECESSOR_IMAGE_FIELD_NUMBER: _ClassVar[int]
    CHIP_ID_FIELD_NUMBER: _ClassVar[int]
    SUCCESSOR_IMAGE_FIELD_NUMBER: _ClassVar[int]
    POLICY_SHA256_FIELD_NUMBER: _ClassVar[int]
    POPULATIONS_FIELD_NUMBER: _ClassVar[int]
    predecessor_image: str
    chip_id: bytes
    successor_image: str
    policy_sha256: bytes
    populations: _containers.RepeatedCompositeFieldContainer[HandedPopulation]
    def __init__(self, predecessor_image: _Optional[str] = ..., chip_id: _Optional[bytes] = ..., successor_image: _Optional[str] = ..., policy_sha256: _Optional[bytes] = ..., populations: _Optional[_Iterable[_Union[HandedPopulation, _Mapping]]] = ...) -> None: ...

class HandedPopulation(_message.Message):
    __slots__ = ("population", "ledger_id", "charter_sha256", "entries", "head")
    POPULATION_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    CHARTER_SHA256_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    population: str
    ledger_id: bytes
    charter_sha256: bytes
    entries: int
    head: bytes
    def __init__(self, population: _Optional[str] = ..., ledger_id: _Optional[bytes] = ..., charter_sha256: _Optional[bytes] = ..., entries: _Optional[int] = ..., head: _Optional[bytes] = ...) -> None: ...

class HandOver(_message.Message):
    __slots__ = ("statement", "signature", "evidence")
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    statement: bytes
    signature: bytes
    evidence: _attestation_pb2.GetEvidenceResponse
    def __init__(self, statement: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., evidence: _Optional[_Union[_attestation_pb2.GetEvidenceResponse, _Mapping]] = ...) -> None: ...

class HandOverRequest(_message.Message):
    __slots__ = ("successor", "nonce", "log", "void_rounds")
    SUCCESSOR_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    VOID_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    successor: _attestation_pb2.GetEvidenceResponse
    nonce: bytes
    log: LogExcerpt
    void_rounds: bool
    def __init__(self, successor: _Optional[_Union[_attestation_pb2.GetEvidenceResponse, _Mapping]] = ..., nonce: _Optional[bytes] = ..., log: _Optional[_Union[LogExcerpt, _Mapping]] = ..., void_rounds: _Optional[bool] = ...) -> None: ...

class HandOverResponse(_message.Message):
    __slots__ = ("waiting", "package")
    WAITING_FIELD_NUMBER: _ClassVar[int]
    PACKAGE_FIELD_NUMBER: _ClassVar[int]
    waiting: WaitingRounds
    package: HandOverPackage
    def __init__(self, waiting: _Optional[_Union[WaitingRounds, _Mapping]] = ..., package: _Optional[_Union[HandOverPackage, _Mapping]] = ...) -> None: ...

class WaitingRounds(_message.Message):
    __slots__ = ("rounds", "contributions", "unvoidable")
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    UNVOIDABLE_FIELD_NUMBER: _ClassVar[int]
    rounds: int
    contributions: int
    unvoidable: int
    def __init__(self, rounds: _Optional[int] = ..., contributions: _Optional[int] = ..., unvoidable: _Optional[int] = ...) -> None: ...

class HandOverPackage(_message.Message):
    __slots__ = ("hand_over", "sealed", "signature", "sealed_streams", "streams_signature")
    HAND_OVER_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    SEALED_STREAMS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    hand_over: HandOver
    sealed: bytes
    signature: bytes
    sealed_streams: bytes
    streams_signature: bytes
    def __init__(self, hand_over: _Optional[_Union[HandOver, _Mapping]] = ..., sealed: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., sealed_streams: _Optional[bytes] = ..., streams_signature: _Optional[bytes] = ...) -> None: ...

class StreamSecrets(_message.Message):
    __slots__ = ("streams",)
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    streams: _containers.RepeatedCompositeFieldContainer[StreamSecret]
    def __init__(self, streams: _Optional[_Iterable[_Union[StreamSecret, _Mapping]]] = ...) -> None: ...

class StreamSecret(_message.Message):
    __slots__ = ("task_sha256", "round", "secret")
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    task_sha256: bytes
    round: int
    secret: bytes
    def __init__(self, task_sha256: _Optional[bytes] = ..., round: _Optional[int] = ..., secret: _Optional[bytes] = ...) -> None: ...
