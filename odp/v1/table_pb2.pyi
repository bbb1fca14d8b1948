from odp.v1 import common_pb2 as _common_pb2
from odp.v1 import encoding_pb2 as _encoding_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PublishTableRequest(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: TableHeader
    chunk: bytes
    def __init__(self, header: _Optional[_Union[TableHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class TableHeader(_message.Message):
    __slots__ = ("name", "rows_per_request", "rows", "width", "encoding", "sha256")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROWS_PER_REQUEST_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    name: str
    rows_per_request: int
    rows: int
    width: int
    encoding: _encoding_pb2.TableEncoding
    sha256: bytes
    def __init__(self, name: _Optional[str] = ..., rows_per_request: _Optional[int] = ..., rows: _Optional[int] = ..., width: _Optional[int] = ..., encoding: _Optional[_Union[_encoding_pb2.TableEncoding, str]] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class PublishTableResponse(_message.Message):
    __slots__ = ("table",)
    TABLE_FIELD_NUMBER: _ClassVar[int]
    table: PublishedTable
    def __init__(self, table: _Optional[_Union[PublishedTable, _Mapping]] = ...) -> None: ...

class PublishedTable(_message.Message):
    __slots__ = ("definition", "manifest", "distributor_address")
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    DISTRIBUTOR_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    definition: _common_pb2.SignedTask
    manifest: _common_pb2.SignedManifest
    distributor_address: str
    def __init__(self, definition: _Optional[_Union[_common_pb2.SignedTask, _Mapping]] = ..., manifest: _Optional[_Union[_common_pb2.SignedManifest, _Mapping]] = ..., distributor_address: _Optional[str] = ...) -> None: ...

class GetTableRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetTableResponse(_message.Message):
    __slots__ = ("table",)
    TABLE_FIELD_NUMBER: _ClassVar[int]
    table: PublishedTable
    def __init__(self, table: _Optional[_Union[PublishedTable, _Mapping]] = ...) -> None: ...

class TableRecord(_message.Message):
    __slots__ = ("definition", "signed", "announced")
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    SIGNED_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCED_FIELD_NUMBER: _ClassVar[int]
    definition: _common_pb2.SignedTask
    signed: _common_pb2.SignedManifest
    announced: _common_pb2.SignedManifest
    def __init__(self, definition: _Optional[_Union[_common_pb2.SignedTask, _Mapping]] = ..., signed: _Optional[_Union[_common_pb2.SignedManifest, _Mapping]] = ..., announced: _Optional[_Union[_common_pb2.SignedManifest, _Mapping]] = ...) -> None: ...
