from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class StoredRelease(_message.Message):
    __slots__ = ("release", "signature", "values_key")
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    VALUES_KEY_FIELD_NUMBER: _ClassVar[int]
    release: bytes
    signature: bytes
    values_key: bytes
    def __init__(self, release: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., values_key: _Optional[bytes] = ...) -> None: ...
