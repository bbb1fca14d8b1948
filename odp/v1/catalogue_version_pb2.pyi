from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class CatalogueVersion(_message.Message):
    __slots__ = ("version", "sha256")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    version: int
    sha256: bytes
    def __init__(self, version: _Optional[int] = ..., sha256: _Optional[bytes] = ...) -> None: ...
