from odp.v1 import attestation_pb2 as _attestation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EnclaveRequest(_message.Message):
    __slots__ = ("start", "evidence", "ping")
    START_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    start: EnclaveStart
    evidence: _attestation_pb2.GetEvidenceRequest
    ping: Ping
    def __init__(self, start: _Optional[_Union[EnclaveStart, _Mapping]] = ..., evidence: _Optional[_Union[_attestation_pb2.GetEvidenceRequest, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ...) -> None: ...

class EnclaveReply(_message.Message):
    __slots__ = ("failure", "started", "ready", "evidence", "done")
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    failure: Failure
    started: Started
    ready: Ready
    evidence: _attestation_pb2.GetEvidenceResponse
    done: Done
    def __init__(self, failure: _Optional[_Union[Failure, _Mapping]] = ..., started: _Optional[_Union[Started, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., evidence: _Optional[_Union[_attestation_pb2.GetEvidenceResponse, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("kind", "message")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Failure.Kind]
        KIND_CONFIGURATION: _ClassVar[Failure.Kind]
        KIND_PRIVACY: _ClassVar[Failure.Kind]
        KIND_BUDGET: _ClassVar[Failure.Kind]
        KIND_STATE: _ClassVar[Failure.Kind]
        KIND_SIGNATURE: _ClassVar[Failure.Kind]
        KIND_DECRYPTION: _ClassVar[Failure.Kind]
        KIND_NOT_HELD: _ClassVar[Failure.Kind]
        KIND_POPULATION_FULL: _ClassVar[Failure.Kind]
    KIND_UNSPECIFIED: Failure.Kind
    KIND_CONFIGURATION: Failure.Kind
    KIND_PRIVACY: Failure.Kind
    KIND_BUDGET: Failure.Kind
    KIND_STATE: Failure.Kind
    KIND_SIGNATURE: Failure.Kind
    KIND_DECRYPTION: Failure.Kind
    KIND_NOT_HELD: Failure.Kind
    KIND_POPULATION_FULL: Failure.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    kind: Failure.Kind
    message: str
    def __init__(self, kind: _Optional[_Union[Failure.Kind, str]] = ..., message: _Optional[str] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Done(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EnclaveStart(_message.Message):
    __slots__ = ("sealed_keys",)
    SEALED_KEYS_FIELD_NUMBER: _ClassVar[int]
    sealed_keys: bytes
    def __init__(self, sealed_keys: _Optional[bytes] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("sealed_keys",)
    SEALED_KEYS_FIELD_NUMBER: _ClassVar[int]
    sealed_keys: bytes
    def __init__(self, sealed_keys: _Optional[bytes] = ...) -> None: ...

class SealedRecord(_message.Message):
    __slots__ = ("key", "data", "pieces")
    KEY_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    key: str
    data: bytes
    pieces: int
    def __init__(self, key: _Optional[str] = ..., data: _Optional[bytes] = ..., pieces: _Optional[int] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("writes",)
    WRITES_FIELD_NUMBER: _ClassVar[int]
    writes: _containers.RepeatedCompositeFieldContainer[SealedRecord]
    def __init__(self, writes: _Optional[_Iterable[_Union[SealedRecord, _Mapping]]] = ...) -> None: ...
