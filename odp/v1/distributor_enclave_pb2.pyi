from odp.v1 import attestation_pb2 as _attestation_pb2
from odp.v1 import distributor_pb2 as _distributor_pb2
from odp.v1 import enclave_pb2 as _enclave_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DistributorEnclaveRequest(_message.Message):
    __slots__ = ("start", "evidence", "ping", "check_room", "begin_model", "chunk", "install", "models", "select", "forget")
    START_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    CHECK_ROOM_FIELD_NUMBER: _ClassVar[int]
    BEGIN_MODEL_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    INSTALL_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    SELECT_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    start: _enclave_pb2.EnclaveStart
    evidence: _attestation_pb2.GetEvidenceRequest
    ping: _enclave_pb2.Ping
    check_room: _distributor_pb2.PublishHeader
    begin_model: _distributor_pb2.PublishHeader
    chunk: TableChunk
    install: InstallModel
    models: AskModels
    select: _distributor_pb2.SelectRequest
    forget: ForgetModel
    def __init__(self, start: _Optional[_Union[_enclave_pb2.EnclaveStart, _Mapping]] = ..., evidence: _Optional[_Union[_attestation_pb2.GetEvidenceRequest, _Mapping]] = ..., ping: _Optional[_Union[_enclave_pb2.Ping, _Mapping]] = ..., check_room: _Optional[_Union[_distributor_pb2.PublishHeader, _Mapping]] = ..., begin_model: _Optional[_Union[_distributor_pb2.PublishHeader, _Mapping]] = ..., chunk: _Optional[_Union[TableChunk, _Mapping]] = ..., install: _Optional[_Union[InstallModel, _Mapping]] = ..., models: _Optional[_Union[AskModels, _Mapping]] = ..., select: _Optional[_Union[_distributor_pb2.SelectRequest, _Mapping]] = ..., forget: _Optional[_Union[ForgetModel, _Mapping]] = ...) -> None: ...

class DistributorEnclaveReply(_message.Message):
    __slots__ = ("failure", "started", "ready", "evidence", "done", "models", "selected")
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    SELECTED_FIELD_NUMBER: _ClassVar[int]
    failure: _enclave_pb2.Failure
    started: _enclave_pb2.Started
    ready: _enclave_pb2.Ready
    evidence: _attestation_pb2.GetEvidenceResponse
    done: _enclave_pb2.Done
    models: ModelIds
    selected: _distributor_pb2.SelectResponse
    def __init__(self, failure: _Optional[_Union[_enclave_pb2.Failure, _Mapping]] = ..., started: _Optional[_Union[_enclave_pb2.Started, _Mapping]] = ..., ready: _Optional[_Union[_enclave_pb2.Ready, _Mapping]] = ..., evidence: _Optional[_Union[_attestation_pb2.GetEvidenceResponse, _Mapping]] = ..., done: _Optional[_Union[_enclave_pb2.Done, _Mapping]] = ..., models: _Optional[_Union[ModelIds, _Mapping]] = ..., selected: _Optional[_Union[_distributor_pb2.SelectResponse, _Mapping]] = ...) -> None: ...

class TableChunk(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class InstallModel(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AskModels(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ModelIds(_message.Message):
    __slots__ = ("model_sha256",)
    MODEL_SHA256_FIELD_NUMBER: _ClassVar[int]
    model_sha256: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, model_sha256: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ForgetModel(_message.Message):
    __slots__ = ("model_sha256",)
    MODEL_SHA256_FIELD_NUMBER: _ClassVar[int]
    model_sha256: bytes
    def __init__(self, model_sha256: _Optional[bytes] = ...) -> None: ...
