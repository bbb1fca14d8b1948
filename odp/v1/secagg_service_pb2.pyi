from odp.v1 import secure_aggregation_pb2 as _secure_aggregation_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JoinRequest(_message.Message):
    __slots__ = ("task_sha256", "round")
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    task_sha256: bytes
    round: int
    def __init__(self, task_sha256: _Optional[bytes] = ..., round: _Optional[int] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("config", "wait", "end")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    config: bytes
    wait: SecAggWait
    end: SecAggEnd
    def __init__(self, config: _Optional[bytes] = ..., wait: _Optional[_Union[SecAggWait, _Mapping]] = ..., end: _Optional[_Union[SecAggEnd, _Mapping]] = ...) -> None: ...

class SecAggWait(_message.Message):
    __slots__ = ("milliseconds", "repeat")
    MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    REPEAT_FIELD_NUMBER: _ClassVar[int]
    milliseconds: int
    repeat: bool
    def __init__(self, milliseconds: _Optional[int] = ..., repeat: _Optional[bool] = ...) -> None: ...

class SecAggClient(_message.Message):
    __slots__ = ("task_sha256", "round", "attempt", "identity", "token")
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    task_sha256: bytes
    round: int
    attempt: int
    identity: bytes
    token: bytes
    def __init__(self, task_sha256: _Optional[bytes] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., identity: _Optional[bytes] = ..., token: _Optional[bytes] = ...) -> None: ...

class StepRequest(_message.Message):
    __slots__ = ("client", "advert", "reveal", "shares", "masked", "agreement", "unmask", "leave", "admission_token")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    ADVERT_FIELD_NUMBER: _ClassVar[int]
    REVEAL_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    MASKED_FIELD_NUMBER: _ClassVar[int]
    AGREEMENT_FIELD_NUMBER: _ClassVar[int]
    UNMASK_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    ADMISSION_TOKEN_FIELD_NUMBER: _ClassVar[int]
    client: SecAggClient
    advert: _secure_aggregation_pb2.SecAggAdvert
    reveal: _secure_aggregation_pb2.SecAggReveal
    shares: _secure_aggregation_pb2.SecAggShares
    masked: _secure_aggregation_pb2.SecAggMasked
    agreement: _secure_aggregation_pb2.SecAggAgreement
    unmask: _secure_aggregation_pb2.SecAggUnmask
    leave: bool
    admission_token: bytes
    def __init__(self, client: _Optional[_Union[SecAggClient, _Mapping]] = ..., advert: _Optional[_Union[_secure_aggregation_pb2.SecAggAdvert, _Mapping]] = ..., reveal: _Optional[_Union[_secure_aggregation_pb2.SecAggReveal, _Mapping]] = ..., shares: _Optional[_Union[_secure_aggregation_pb2.SecAggShares, _Mapping]] = ..., masked: _Optional[_Union[_secure_aggregation_pb2.SecAggMasked, _Mapping]] = ..., agreement: _Optional[_Union[_secure_aggregation_pb2.SecAggAgreement, _Mapping]] = ..., unmask: _Optional[_Union[_secure_aggregation_pb2.SecAggUnmask, _Mapping]] = ..., leave: _Optional[bool] = ..., admission_token: _Optional[bytes] = ...) -> None: ...

class StepResponse(_message.Message):
    __slots__ = ("wait", "adverts", "reveals", "inbox", "survivors", "agreements", "end")
    WAIT_FIELD_NUMBER: _ClassVar[int]
    ADVERTS_FIELD_NUMBER: _ClassVar[int]
    REVEALS_FIELD_NUMBER: _ClassVar[int]
    INBOX_FIELD_NUMBER: _ClassVar[int]
    SURVIVORS_FIELD_NUMBER: _ClassVar[int]
    AGREEMENTS_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    wait: SecAggWait
    adverts: _secure_aggregation_pb2.SecAggAdverts
    reveals: _secure_aggregation_pb2.SecAggReveals
    inbox: _secure_aggregation_pb2.SecAggInbox
    survivors: _secure_aggregation_pb2.SecAggSurvivors
    agreements: _secure_aggregation_pb2.SecAggAgreements
    end: SecAggEnd
    def __init__(self, wait: _Optional[_Union[SecAggWait, _Mapping]] = ..., adverts: _Optional[_Union[_secure_aggregation_pb2.SecAggAdverts, _Mapping]] = ..., reveals: _Optional[_Union[_secure_aggregation_pb2.SecAggReveals, _Mapping]] = ..., inbox: _Optional[_Union[_secure_aggregation_pb2.SecAggInbox, _Mapping]] = ..., survivors: _Optional[_Union[_secure_aggregation_pb2.SecAggSurvivors, _Mapping]] = ..., agreements: _Optional[_Union[_secure_aggregation_pb2.SecAggAgreements, _Mapping]] = ..., end: _Optional[_Union[SecAggEnd, _Mapping]] = ...) -> None: ...

class SendMaskedResponse(_message.Message):
    __slots__ = ("answer",)
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    answer: StepResponse
    def __init__(self, answer: _Optional[_Union[StepResponse, _Mapping]] = ...) -> None: ...

class SecAggEnd(_message.Message):
    __slots__ = ("reason", "retry_seconds")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REASON_UNSPECIFIED: _ClassVar[SecAggEnd.Reason]
        REASON_DONE: _ClassVar[SecAggEnd.Reason]
        REASON_VOIDED: _ClassVar[SecAggEnd.Reason]
        REASON_DROPPED: _ClassVar[SecAggEnd.Reason]
    REASON_UNSPECIFIED: SecAggEnd.Reason
    REASON_DONE: SecAggEnd.Reason
    REASON_VOIDED: SecAggEnd.Reason
    REASON_DROPPED: SecAggEnd.Reason
    REASON_FIELD_NUMBER: _ClassVar[int]
    RETRY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    reason: SecAggEnd.Reason
    retry_seconds: int
    def __init__(self, reason: _Optional[_Union[SecAggEnd.Reason, str]] = ..., retry_seconds: _Optional[int] = ...) -> None: ...

class SendMaskedRequest(_message.Message):
    __slots__ = ("client", "session", "chunk")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    client: SecAggClient
    session: bytes
    chunk: bytes
    def __init__(self, client: _Optional[_Union[SecAggClient, _Mapping]] = ..., session: _Optional[bytes] = ..., chunk: _Optional[bytes] = ...) -> None: ...
