from odp.v1 import distributor_pb2 as _distributor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReplicateRequest(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: _distributor_pb2.PublishHeader
    chunk: bytes
    def __init__(self, header: _Optional[_Union[_distributor_pb2.PublishHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class ReplicateResponse(_message.Message):
    __slots__ = ("model_sha256",)
    MODEL_SHA256_FIELD_NUMBER: _ClassVar[int]
    model_sha256: bytes
    def __init__(self, model_sha256: _Optional[bytes] = ...) -> None: ...

class GetShapeRequest(_message.Message):
    __slots__ = ("model_sha256", "table")
    MODEL_SHA256_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    model_sha256: bytes
    table: str
    def __init__(self, model_sha256: _Optional[bytes] = ..., table: _Optional[str] = ...) -> None: ...

class GetShapeResponse(_message.Message):
    __slots__ = ("model_sha256", "shape")
    MODEL_SHA256_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    model_sha256: bytes
    shape: bytes
    def __init__(self, model_sha256: _Optional[bytes] = ..., shape: _Optional[bytes] = ...) -> None: ...

class SelectPrivatelyRequest(_message.Message):
    __slots__ = ("model_sha256", "table", "leader_query", "sealed_helper_query")
    MODEL_SHA256_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    LEADER_QUERY_FIELD_NUMBER: _ClassVar[int]
    SEALED_HELPER_QUERY_FIELD_NUMBER: _ClassVar[int]
    model_sha256: bytes
    table: str
    leader_query: bytes
    sealed_helper_query: bytes
    def __init__(self, model_sha256: _Optional[bytes] = ..., table: _Optional[str] = ..., leader_query: _Optional[bytes] = ..., sealed_helper_query: _Optional[bytes] = ...) -> None: ...

class HelperQuery(_message.Message):
    __slots__ = ("table", "query", "pad_seed")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    PAD_SEED_FIELD_NUMBER: _ClassVar[int]
    table: str
    query: bytes
    pad_seed: bytes
    def __init__(self, table: _Optional[str] = ..., query: _Optional[bytes] = ..., pad_seed: _Optional[bytes] = ...) -> None: ...

class SelectPrivatelyResponse(_message.Message):
    __slots__ = ("model_sha256", "answer", "dense")
    MODEL_SHA256_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    DENSE_FIELD_NUMBER: _ClassVar[int]
    model_sha256: bytes
    answer: bytes
    dense: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, model_sha256: _Optional[bytes] = ..., answer: _Optional[bytes] = ..., dense: _Optional[_Iterable[bytes]] = ...) -> None: ...

class AnswerRequest(_message.Message):
    __slots__ = ("model_sha256", "sealed_query")
    MODEL_SHA256_FIELD_NUMBER: _ClassVar[int]
    SEALED_QUERY_FIELD_NUMBER: _ClassVar[int]
    model_sha256: bytes
    sealed_query: bytes
    def __init__(self, model_sha256: _Optional[bytes] = ..., sealed_query: _Optional[bytes] = ...) -> None: ...

class AnswerResponse(_message.Message):
    __slots__ = ("model_sha256", "answer")
    MODEL_SHA256_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    model_sha256: bytes
    answer: bytes
    def __init__(self, model_sha256: _Optional[bytes] = ..., answer: _Optional[bytes] = ...) -> None: ...
