from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PopulationCharter(_message.Message):
    __slots__ = ("population", "sequence", "founding_sha256", "previous_sha256", "owners", "approvals", "issuer_key")
    POPULATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FOUNDING_SHA256_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_SHA256_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    APPROVALS_FIELD_NUMBER: _ClassVar[int]
    ISSUER_KEY_FIELD_NUMBER: _ClassVar[int]
    population: str
    sequence: int
    founding_sha256: bytes
    previous_sha256: bytes
    owners: _containers.RepeatedScalarFieldContainer[bytes]
    approvals: int
    issuer_key: bytes
    def __init__(self, population: _Optional[str] = ..., sequence: _Optional[int] = ..., founding_sha256: _Optional[bytes] = ..., previous_sha256: _Optional[bytes] = ..., owners: _Optional[_Iterable[bytes]] = ..., approvals: _Optional[int] = ..., issuer_key: _Optional[bytes] = ...) -> None: ...

class SignedCharter(_message.Message):
    __slots__ = ("charter", "signatures")
    CHARTER_FIELD_NUMBER: _ClassVar[int]
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    charter: bytes
    signatures: _containers.RepeatedCompositeFieldContainer[CharterSignature]
    def __init__(self, charter: _Optional[bytes] = ..., signatures: _Optional[_Iterable[_Union[CharterSignature, _Mapping]]] = ...) -> None: ...

class CharterSignature(_message.Message):
    __slots__ = ("key", "signature")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    signature: bytes
    def __init__(self, key: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class AbandonOrder(_message.Message):
    __slots__ = ("task_sha256",)
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    task_sha256: bytes
    def __init__(self, task_sha256: _Optional[bytes] = ...) -> None: ...
