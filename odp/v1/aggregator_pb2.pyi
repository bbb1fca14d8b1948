from odp.v1 import common_pb2 as _common_pb2
from odp.v1 import enrolment_pb2 as _enrolment_pb2
from odp.v1 import hand_over_pb2 as _hand_over_pb2
from odp.v1 import population_pb2 as _population_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Refusal(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REFUSAL_UNSPECIFIED: _ClassVar[Refusal]
    REFUSAL_MALFORMED: _ClassVar[Refusal]
    REFUSAL_WRONG_TASK: _ClassVar[Refusal]
    REFUSAL_WRONG_ROUND: _ClassVar[Refusal]
    REFUSAL_WRONG_MODEL: _ClassVar[Refusal]
    REFUSAL_ALREADY_CONTRIBUTED: _ClassVar[Refusal]
    REFUSAL_OUT_OF_BOUNDS: _ClassVar[Refusal]
    REFUSAL_ROUND_CLOSED: _ClassVar[Refusal]
    REFUSAL_TASK_ABANDONED: _ClassVar[Refusal]
    REFUSAL_NO_TOKEN: _ClassVar[Refusal]
    REFUSAL_NOT_DUE: _ClassVar[Refusal]
    REFUSAL_WRONG_LEAF: _ClassVar[Refusal]
REFUSAL_UNSPECIFIED: Refusal
REFUSAL_MALFORMED: Refusal
REFUSAL_WRONG_TASK: Refusal
REFUSAL_WRONG_ROUND: Refusal
REFUSAL_WRONG_MODEL: Refusal
REFUSAL_ALREADY_CONTRIBUTED: Refusal
REFUSAL_OUT_OF_BOUNDS: Refusal
REFUSAL_ROUND_CLOSED: Refusal
REFUSAL_TASK_ABANDONED: Refusal
REFUSAL_NO_TOKEN: Refusal
REFUSAL_NOT_DUE: Refusal
REFUSAL_WRONG_LEAF: Refusal

class AskNonceRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AskNonceResponse(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    def __init__(self, nonce: _Optional[bytes] = ...) -> None: ...

class GetHandedRecordsRequest(_message.Message):
    __slots__ = ("after", "offset")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    after: str
    offset: int
    def __init__(self, after: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class GetHandedRecordsResponse(_message.Message):
    __slots__ = ("records",)
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[HandedRecord]
    def __init__(self, records: _Optional[_Iterable[_Union[HandedRecord, _Mapping]]] = ...) -> None: ...

class HandedRecord(_message.Message):
    __slots__ = ("key", "data", "unfinished")
    KEY_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    UNFINISHED_FIELD_NUMBER: _ClassVar[int]
    key: str
    data: bytes
    unfinished: bool
    def __init__(self, key: _Optional[str] = ..., data: _Optional[bytes] = ..., unfinished: _Optional[bool] = ...) -> None: ...

class GetHandOversRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetHandOversResponse(_message.Message):
    __slots__ = ("hand_overs", "root_name", "attempts")
    HAND_OVERS_FIELD_NUMBER: _ClassVar[int]
    ROOT_NAME_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    hand_overs: _containers.RepeatedCompositeFieldContainer[_hand_over_pb2.HandOver]
    root_name: bytes
    attempts: _containers.RepeatedCompositeFieldContainer[UsedAttempts]
    def __init__(self, hand_overs: _Optional[_Iterable[_Union[_hand_over_pb2.HandOver, _Mapping]]] = ..., root_name: _Optional[bytes] = ..., attempts: _Optional[_Iterable[_Union[UsedAttempts, _Mapping]]] = ...) -> None: ...

class UsedAttempts(_message.Message):
    __slots__ = ("task_sha256", "round", "attempts")
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    task_sha256: bytes
    round: int
    attempts: int
    def __init__(self, task_sha256: _Optional[bytes] = ..., round: _Optional[int] = ..., attempts: _Optional[int] = ...) -> None: ...

class CheckTaskRequest(_message.Message):
    __slots__ = ("task",)
    TASK_FIELD_NUMBER: _ClassVar[int]
    task: _common_pb2.SignedTask
    def __init__(self, task: _Optional[_Union[_common_pb2.SignedTask, _Mapping]] = ...) -> None: ...

class CheckTaskResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetCharterRequest(_message.Message):
    __slots__ = ("charter",)
    CHARTER_FIELD_NUMBER: _ClassVar[int]
    charter: _population_pb2.SignedCharter
    def __init__(self, charter: _Optional[_Union[_population_pb2.SignedCharter, _Mapping]] = ...) -> None: ...

class SetCharterResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetChartersRequest(_message.Message):
    __slots__ = ("population", "first")
    POPULATION_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    population: str
    first: int
    def __init__(self, population: _Optional[str] = ..., first: _Optional[int] = ...) -> None: ...

class GetChartersResponse(_message.Message):
    __slots__ = ("charters",)
    CHARTERS_FIELD_NUMBER: _ClassVar[int]
    charters: _containers.RepeatedCompositeFieldContainer[_population_pb2.SignedCharter]
    def __init__(self, charters: _Optional[_Iterable[_Union[_population_pb2.SignedCharter, _Mapping]]] = ...) -> None: ...

class AbandonTaskRequest(_message.Message):
    __slots__ = ("task", "order", "signature")
    TASK_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    task: _common_pb2.SignedTask
    order: bytes
    signature: _population_pb2.CharterSignature
    def __init__(self, task: _Optional[_Union[_common_pb2.SignedTask, _Mapping]] = ..., order: _Optional[bytes] = ..., signature: _Optional[_Union[_population_pb2.CharterSignature, _Mapping]] = ...) -> None: ...

class AbandonTaskResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OpenRoundRequest(_message.Message):
    __slots__ = ("task", "order", "signature", "token_key")
    TASK_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_KEY_FIELD_NUMBER: _ClassVar[int]
    task: _common_pb2.SignedTask
    order: bytes
    signature: bytes
    token_key: _enrolment_pb2.SignedTokenKey
    def __init__(self, task: _Optional[_Union[_common_pb2.SignedTask, _Mapping]] = ..., order: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., token_key: _Optional[_Union[_enrolment_pb2.SignedTokenKey, _Mapping]] = ...) -> None: ...

class RoundOrder(_message.Message):
    __slots__ = ("task_sha256", "round", "model_sha256")
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    MODEL_SHA256_FIELD_NUMBER: _ClassVar[int]
    task_sha256: bytes
    round: int
    model_sha256: bytes
    def __init__(self, task_sha256: _Optional[bytes] = ..., round: _Optional[int] = ..., model_sha256: _Optional[bytes] = ...) -> None: ...

class OpenRoundResponse(_message.Message):
    __slots__ = ("round_key",)
    ROUND_KEY_FIELD_NUMBER: _ClassVar[int]
    round_key: _common_pb2.SignedRoundKey
    def __init__(self, round_key: _Optional[_Union[_common_pb2.SignedRoundKey, _Mapping]] = ...) -> None: ...

class SubmitRequest(_message.Message):
    __slots__ = ("task_sha256", "round", "sealed_contribution", "masked_vector", "masked_sha256")
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SEALED_CONTRIBUTION_FIELD_NUMBER: _ClassVar[int]
    MASKED_VECTOR_FIELD_NUMBER: _ClassVar[int]
    MASKED_SHA256_FIELD_NUMBER: _ClassVar[int]
    task_sha256: bytes
    round: int
    sealed_contribution: bytes
    masked_vector: bytes
    masked_sha256: bytes
    def __init__(self, task_sha256: _Optional[bytes] = ..., round: _Optional[int] = ..., sealed_contribution: _Optional[bytes] = ..., masked_vector: _Optional[bytes] = ..., masked_sha256: _Optional[bytes] = ...) -> None: ...

class SubmitStreamRequest(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: SubmitHeader
    chunk: bytes
    def __init__(self, header: _Optional[_Union[SubmitHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class SubmitStreamResponse(_message.Message):
    __slots__ = ("refusal", "signature")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    refusal: Refusal
    signature: bytes
    def __init__(self, refusal: _Optional[_Union[Refusal, str]] = ..., signature: _Optional[bytes] = ...) -> None: ...

class SubmitHeader(_message.Message):
    __slots__ = ("task_sha256", "round", "sealed_contribution", "sealed_key")
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SEALED_CONTRIBUTION_FIELD_NUMBER: _ClassVar[int]
    SEALED_KEY_FIELD_NUMBER: _ClassVar[int]
    task_sha256: bytes
    round: int
    sealed_contribution: bytes
    sealed_key: bytes
    def __init__(self, task_sha256: _Optional[bytes] = ..., round: _Optional[int] = ..., sealed_contribution: _Optional[bytes] = ..., sealed_key: _Optional[bytes] = ...) -> None: ...

class Contribution(_message.Message):
    __slots__ = ("task_sha256", "round", "model_sha256", "contribution_id", "pseudonym", "payload", "token")
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    MODEL_SHA256_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTION_ID_FIELD_NUMBER: _ClassVar[int]
    PSEUDONYM_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    task_sha256: bytes
    round: int
    model_sha256: bytes
    contribution_id: bytes
    pseudonym: bytes
    payload: bytes
    token: bytes
    def __init__(self, task_sha256: _Optional[bytes] = ..., round: _Optional[int] = ..., model_sha256: _Optional[bytes] = ..., contribution_id: _Optional[bytes] = ..., pseudonym: _Optional[bytes] = ..., payload: _Optional[bytes] = ..., token: _Optional[bytes] = ...) -> None: ...

class SubmitResponse(_message.Message):
    __slots__ = ("refusal", "signature")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    refusal: Refusal
    signature: bytes
    def __init__(self, refusal: _Optional[_Union[Refusal, str]] = ..., signature: _Optional[bytes] = ...) -> None: ...

class GetRoundRequest(_message.Message):
    __slots__ = ("task_sha256", "round")
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    task_sha256: bytes
    round: int
    def __init__(self, task_sha256: _Optional[bytes] = ..., round: _Optional[int] = ...) -> None: ...

class GetRoundResponse(_message.Message):
    __slots__ = ("contributions", "released")
    CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    contributions: int
    released: bool
    def __init__(self, contributions: _Optional[int] = ..., released: _Optional[bool] = ...) -> None: ...

class CloseRoundRequest(_message.Message):
    __slots__ = ("order", "signature")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    order: bytes
    signature: bytes
    def __init__(self, order: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class CloseRoundResponse(_message.Message):
    __slots__ = ("release",)
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    release: _common_pb2.SignedRelease
    def __init__(self, release: _Optional[_Union[_common_pb2.SignedRelease, _Mapping]] = ...) -> None: ...

class GetReleasedValuesRequest(_message.Message):
    __slots__ = ("order",)
    ORDER_FIELD_NUMBER: _ClassVar[int]
    order: bytes
    def __init__(self, order: _Optional[bytes] = ...) -> None: ...

class GetReleasedValuesResponse(_message.Message):
    __slots__ = ("chunk",)
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    chunk: bytes
    def __init__(self, chunk: _Optional[bytes] = ...) -> None: ...

class GetLedgerRequest(_message.Message):
    __slots__ = ("task_sha256", "first")
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    task_sha256: bytes
    first: int
    def __init__(self, task_sha256: _Optional[bytes] = ..., first: _Optional[int] = ...) -> None: ...

class GetLedgerResponse(_message.Message):
    __slots__ = ("entries", "signature", "head")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    entries: bytes
    signature: bytes
    head: bytes
    def __init__(self, entries: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., head: _Optional[bytes] = ...) -> None: ...
