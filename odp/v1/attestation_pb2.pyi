from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class GetEvidenceRequest(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    def __init__(self, nonce: _Optional[bytes] = ...) -> None: ...

class GetEvidenceResponse(_message.Message):
    __slots__ = ("token", "policy", "event_log")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    EVENT_LOG_FIELD_NUMBER: _ClassVar[int]
    token: str
    policy: bytes
    event_log: bytes
    def __init__(self, token: _Optional[str] = ..., policy: _Optional[bytes] = ..., event_log: _Optional[bytes] = ...) -> None: ...
