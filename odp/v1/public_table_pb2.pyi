from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class PublicTable(_message.Message):
    __slots__ = ("rows_per_request",)
    ROWS_PER_REQUEST_FIELD_NUMBER: _ClassVar[int]
    rows_per_request: int
    def __init__(self, rows_per_request: _Optional[int] = ...) -> None: ...
