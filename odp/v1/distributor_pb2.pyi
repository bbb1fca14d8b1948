from odp.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ForgetTaskRequest(_message.Message):
    __slots__ = ("order", "signature")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    order: bytes
    signature: bytes
    def __init__(self, order: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class ForgetTaskResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: PublishHeader
    chunk: bytes
    def __init__(self, header: _Optional[_Union[PublishHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class PublishHeader(_message.Message):
    __slots__ = ("task", "model")
    TASK_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    task: _common_pb2.SignedTask
    model: _common_pb2.SignedManifest
    def __init__(self, task: _Optional[_Union[_common_pb2.SignedTask, _Mapping]] = ..., model: _Optional[_Union[_common_pb2.SignedManifest, _Mapping]] = ...) -> None: ...

class PublishResponse(_message.Message):
    __slots__ = ("model_sha256",)
    MODEL_SHA256_FIELD_NUMBER: _ClassVar[int]
    model_sha256: bytes
    def __init__(self, model_sha256: _Optional[bytes] = ...) -> None: ...

class SelectRequest(_message.Message):
    __slots__ = ("model_sha256", "sealed_keys")
    MODEL_SHA256_FIELD_NUMBER: _ClassVar[int]
    SEALED_KEYS_FIELD_NUMBER: _ClassVar[int]
    model_sha256: bytes
    sealed_keys: bytes
    def __init__(self, model_sha256: _Optional[bytes] = ..., sealed_keys: _Optional[bytes] = ...) -> None: ...

class SelectKeys(_message.Message):
    __slots__ = ("table", "keys", "reply_key")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    REPLY_KEY_FIELD_NUMBER: _ClassVar[int]
    table: str
    keys: bytes
    reply_key: bytes
    def __init__(self, table: _Optional[str] = ..., keys: _Optional[bytes] = ..., reply_key: _Optional[bytes] = ...) -> None: ...

class SelectResponse(_message.Message):
    __slots__ = ("sealed_rows",)
    SEALED_ROWS_FIELD_NUMBER: _ClassVar[int]
    sealed_rows: bytes
    def __init__(self, sealed_rows: _Optional[bytes] = ...) -> None: ...

class SelectedRows(_message.Message):
    __slots__ = ("rows", "dense")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DENSE_FIELD_NUMBER: _ClassVar[int]
    rows: bytes
    dense: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, rows: _Optional[bytes] = ..., dense: _Optional[_Iterable[bytes]] = ...) -> None: ...

class DownloadRequest(_message.Message):
    __slots__ = ("model_sha256", "table", "first_chunk", "blocks")
    MODEL_SHA256_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    FIRST_CHUNK_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    model_sha256: bytes
    table: str
    first_chunk: int
    blocks: bytes
    def __init__(self, model_sha256: _Optional[bytes] = ..., table: _Optional[str] = ..., first_chunk: _Optional[int] = ..., blocks: _Optional[bytes] = ...) -> None: ...

class DownloadResponse(_message.Message):
    __slots__ = ("chunk",)
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    chunk: bytes
    def __init__(self, chunk: _Optional[bytes] = ...) -> None: ...

class ListBlocksRequest(_message.Message):
    __slots__ = ("model_sha256", "table")
    MODEL_SHA256_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    model_sha256: bytes
    table: str
    def __init__(self, model_sha256: _Optional[bytes] = ..., table: _Optional[str] = ...) -> None: ...

class ListBlocksResponse(_message.Message):
    __slots__ = ("sha256",)
    SHA256_FIELD_NUMBER: _ClassVar[int]
    sha256: bytes
    def __init__(self, sha256: _Optional[bytes] = ...) -> None: ...
