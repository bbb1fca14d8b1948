from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class SecAggTerms(_message.Message):
    __slots__ = ("lying_server", "corrupt", "dropout", "neighbours", "threshold", "sharers", "roster_sha256", "roster_size")
    LYING_SERVER_FIELD_NUMBER: _ClassVar[int]
    CORRUPT_FIELD_NUMBER: _ClassVar[int]
    DROPOUT_FIELD_NUMBER: _ClassVar[int]
    NEIGHBOURS_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    SHARERS_FIELD_NUMBER: _ClassVar[int]
    ROSTER_SHA256_FIELD_NUMBER: _ClassVar[int]
    ROSTER_SIZE_FIELD_NUMBER: _ClassVar[int]
    lying_server: bool
    corrupt: float
    dropout: float
    neighbours: int
    threshold: int
    sharers: int
    roster_sha256: bytes
    roster_size: int
    def __init__(self, lying_server: _Optional[bool] = ..., corrupt: _Optional[float] = ..., dropout: _Optional[float] = ..., neighbours: _Optional[int] = ..., threshold: _Optional[int] = ..., sharers: _Optional[int] = ..., roster_sha256: _Optional[bytes] = ..., roster_size: _Optional[int] = ...) -> None: ...
