from odp.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetChallengeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetChallengeResponse(_message.Message):
    __slots__ = ("challenge", "attesters")
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    ATTESTERS_FIELD_NUMBER: _ClassVar[int]
    challenge: bytes
    attesters: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, challenge: _Optional[bytes] = ..., attesters: _Optional[_Iterable[str]] = ...) -> None: ...

class IssueTokenRequest(_message.Message):
    __slots__ = ("task_sha256", "round", "blinded_message", "challenge", "attester", "statement")
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BLINDED_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    ATTESTER_FIELD_NUMBER: _ClassVar[int]
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    task_sha256: bytes
    round: int
    blinded_message: bytes
    challenge: bytes
    attester: str
    statement: bytes
    def __init__(self, task_sha256: _Optional[bytes] = ..., round: _Optional[int] = ..., blinded_message: _Optional[bytes] = ..., challenge: _Optional[bytes] = ..., attester: _Optional[str] = ..., statement: _Optional[bytes] = ...) -> None: ...

class IssueTokenResponse(_message.Message):
    __slots__ = ("blind_signature",)
    BLIND_SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    blind_signature: bytes
    def __init__(self, blind_signature: _Optional[bytes] = ...) -> None: ...

class TokenKey(_message.Message):
    __slots__ = ("population", "task_sha256", "round", "modulus", "not_after")
    POPULATION_FIELD_NUMBER: _ClassVar[int]
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    MODULUS_FIELD_NUMBER: _ClassVar[int]
    NOT_AFTER_FIELD_NUMBER: _ClassVar[int]
    population: str
    task_sha256: bytes
    round: int
    modulus: bytes
    not_after: int
    def __init__(self, population: _Optional[str] = ..., task_sha256: _Optional[bytes] = ..., round: _Optional[int] = ..., modulus: _Optional[bytes] = ..., not_after: _Optional[int] = ...) -> None: ...

class SignedTokenKey(_message.Message):
    __slots__ = ("token_key", "signature")
    TOKEN_KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    token_key: bytes
    signature: bytes
    def __init__(self, token_key: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class GetTokenKeyRequest(_message.Message):
    __slots__ = ("task", "order", "signature")
    TASK_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    task: _common_pb2.SignedTask
    order: bytes
    signature: bytes
    def __init__(self, task: _Optional[_Union[_common_pb2.SignedTask, _Mapping]] = ..., order: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class GetTokenKeyResponse(_message.Message):
    __slots__ = ("token_key",)
    TOKEN_KEY_FIELD_NUMBER: _ClassVar[int]
    token_key: SignedTokenKey
    def __init__(self, token_key: _Optional[_Union[SignedTokenKey, _Mapping]] = ...) -> None: ...
