from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BroadcastTerms(_message.Message):
    __slots__ = ("method", "helper_key")
    class Method(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        METHOD_UNSPECIFIED: _ClassVar[BroadcastTerms.Method]
        METHOD_ALL: _ClassVar[BroadcastTerms.Method]
        METHOD_PIR: _ClassVar[BroadcastTerms.Method]
    METHOD_UNSPECIFIED: BroadcastTerms.Method
    METHOD_ALL: BroadcastTerms.Method
    METHOD_PIR: BroadcastTerms.Method
    METHOD_FIELD_NUMBER: _ClassVar[int]
    HELPER_KEY_FIELD_NUMBER: _ClassVar[int]
    method: BroadcastTerms.Method
    helper_key: bytes
    def __init__(self, method: _Optional[_Union[BroadcastTerms.Method, str]] = ..., helper_key: _Optional[bytes] = ...) -> None: ...
