from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LogProof(_message.Message):
    __slots__ = ("checkpoint", "task", "model", "endorsements", "charter")
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ENDORSEMENTS_FIELD_NUMBER: _ClassVar[int]
    CHARTER_FIELD_NUMBER: _ClassVar[int]
    checkpoint: bytes
    task: Inclusion
    model: Inclusion
    endorsements: _containers.RepeatedCompositeFieldContainer[Inclusion]
    charter: Inclusion
    def __init__(self, checkpoint: _Optional[bytes] = ..., task: _Optional[_Union[Inclusion, _Mapping]] = ..., model: _Optional[_Union[Inclusion, _Mapping]] = ..., endorsements: _Optional[_Iterable[_Union[Inclusion, _Mapping]]] = ..., charter: _Optional[_Union[Inclusion, _Mapping]] = ...) -> None: ...

class Inclusion(_message.Message):
    __slots__ = ("index", "hashes", "entry")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    index: int
    hashes: bytes
    entry: bytes
    def __init__(self, index: _Optional[int] = ..., hashes: _Optional[bytes] = ..., entry: _Optional[bytes] = ...) -> None: ...

class GetCheckpointRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetCheckpointResponse(_message.Message):
    __slots__ = ("checkpoint",)
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    checkpoint: bytes
    def __init__(self, checkpoint: _Optional[bytes] = ...) -> None: ...

class GetInclusionProofRequest(_message.Message):
    __slots__ = ("leaf_sha256", "size")
    LEAF_SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    leaf_sha256: bytes
    size: int
    def __init__(self, leaf_sha256: _Optional[bytes] = ..., size: _Optional[int] = ...) -> None: ...

class GetInclusionProofResponse(_message.Message):
    __slots__ = ("inclusion",)
    INCLUSION_FIELD_NUMBER: _ClassVar[int]
    inclusion: Inclusion
    def __init__(self, inclusion: _Optional[_Union[Inclusion, _Mapping]] = ...) -> None: ...

class GetConsistencyProofRequest(_message.Message):
    __slots__ = ("first", "second")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    SECOND_FIELD_NUMBER: _ClassVar[int]
    first: int
    second: int
    def __init__(self, first: _Optional[int] = ..., second: _Optional[int] = ...) -> None: ...

class GetConsistencyProofResponse(_message.Message):
    __slots__ = ("hashes",)
    HASHES_FIELD_NUMBER: _ClassVar[int]
    hashes: bytes
    def __init__(self, hashes: _Optional[bytes] = ...) -> None: ...

class GetEntriesRequest(_message.Message):
    __slots__ = ("start", "count")
    START_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    start: int
    count: int
    def __init__(self, start: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class GetEntriesResponse(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, entries: _Optional[_Iterable[bytes]] = ...) -> None: ...

class GetHashesRequest(_message.Message):
    __slots__ = ("level", "start", "count")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    level: int
    start: int
    count: int
    def __init__(self, level: _Optional[int] = ..., start: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class GetHashesResponse(_message.Message):
    __slots__ = ("hashes",)
    HASHES_FIELD_NUMBER: _ClassVar[int]
    hashes: bytes
    def __init__(self, hashes: _Optional[bytes] = ...) -> None: ...

class GetValuesRequest(_message.Message):
    __slots__ = ("values_sha256",)
    VALUES_SHA256_FIELD_NUMBER: _ClassVar[int]
    values_sha256: bytes
    def __init__(self, values_sha256: _Optional[bytes] = ...) -> None: ...

class GetValuesResponse(_message.Message):
    __slots__ = ("chunk",)
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    chunk: bytes
    def __init__(self, chunk: _Optional[bytes] = ...) -> None: ...

class AddCheckpointRequest(_message.Message):
    __slots__ = ("old_size", "hashes", "checkpoint")
    OLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    old_size: int
    hashes: bytes
    checkpoint: bytes
    def __init__(self, old_size: _Optional[int] = ..., hashes: _Optional[bytes] = ..., checkpoint: _Optional[bytes] = ...) -> None: ...

class AddCheckpointResponse(_message.Message):
    __slots__ = ("size", "cosignature")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    COSIGNATURE_FIELD_NUMBER: _ClassVar[int]
    size: int
    cosignature: str
    def __init__(self, size: _Optional[int] = ..., cosignature: _Optional[str] = ...) -> None: ...
