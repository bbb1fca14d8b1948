from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class CatalogueStep(_message.Message):
    __slots__ = ("population", "version", "previous_sha256", "added", "retired", "withdrawn", "items")
    POPULATION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_SHA256_FIELD_NUMBER: _ClassVar[int]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    RETIRED_FIELD_NUMBER: _ClassVar[int]
    WITHDRAWN_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    population: str
    version: int
    previous_sha256: bytes
    added: _containers.RepeatedScalarFieldContainer[str]
    retired: _containers.RepeatedScalarFieldContainer[str]
    withdrawn: _containers.RepeatedScalarFieldContainer[int]
    items: int
    def __init__(self, population: _Optional[str] = ..., version: _Optional[int] = ..., previous_sha256: _Optional[bytes] = ..., added: _Optional[_Iterable[str]] = ..., retired: _Optional[_Iterable[str]] = ..., withdrawn: _Optional[_Iterable[int]] = ..., items: _Optional[int] = ...) -> None: ...

class PublishCatalogueRequest(_message.Message):
    __slots__ = ("chunk",)
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    chunk: bytes
    def __init__(self, chunk: _Optional[bytes] = ...) -> None: ...

class PublishCatalogueResponse(_message.Message):
    __slots__ = ("version", "sha256")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    version: int
    sha256: bytes
    def __init__(self, version: _Optional[int] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class GetCatalogueStepsRequest(_message.Message):
    __slots__ = ("population", "block")
    POPULATION_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    population: str
    block: int
    def __init__(self, population: _Optional[str] = ..., block: _Optional[int] = ...) -> None: ...

class GetCatalogueStepsResponse(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: bytes
    def __init__(self, step: _Optional[bytes] = ...) -> None: ...
