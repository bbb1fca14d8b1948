from odp.v1 import secure_aggregation_pb2 as _secure_aggregation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SecAggPart(_message.Message):
    __slots__ = ("attempt", "deadline", "gathering", "seats", "said", "summed", "unmasking", "unmasked")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    GATHERING_FIELD_NUMBER: _ClassVar[int]
    SEATS_FIELD_NUMBER: _ClassVar[int]
    SAID_FIELD_NUMBER: _ClassVar[int]
    SUMMED_FIELD_NUMBER: _ClassVar[int]
    UNMASKING_FIELD_NUMBER: _ClassVar[int]
    UNMASKED_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    deadline: float
    gathering: SecAggGathering
    seats: SecAggSeats
    said: SecAggSaid
    summed: SecAggSummed
    unmasking: SecAggUnmasking
    unmasked: SecAggUnmasked
    def __init__(self, attempt: _Optional[int] = ..., deadline: _Optional[float] = ..., gathering: _Optional[_Union[SecAggGathering, _Mapping]] = ..., seats: _Optional[_Union[SecAggSeats, _Mapping]] = ..., said: _Optional[_Union[SecAggSaid, _Mapping]] = ..., summed: _Optional[_Union[SecAggSummed, _Mapping]] = ..., unmasking: _Optional[_Union[SecAggUnmasking, _Mapping]] = ..., unmasked: _Optional[_Union[SecAggUnmasked, _Mapping]] = ...) -> None: ...

class SecAggGathering(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SecAggSeats(_message.Message):
    __slots__ = ("seats",)
    SEATS_FIELD_NUMBER: _ClassVar[int]
    seats: _containers.RepeatedCompositeFieldContainer[SecAggSeat]
    def __init__(self, seats: _Optional[_Iterable[_Union[SecAggSeat, _Mapping]]] = ...) -> None: ...

class SecAggSeat(_message.Message):
    __slots__ = ("advert", "token")
    ADVERT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    advert: _secure_aggregation_pb2.SecAggAdvert
    token: bytes
    def __init__(self, advert: _Optional[_Union[_secure_aggregation_pb2.SecAggAdvert, _Mapping]] = ..., token: _Optional[bytes] = ...) -> None: ...

class SecAggSaid(_message.Message):
    __slots__ = ("reveals", "shares", "agreements")
    class RevealsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: _secure_aggregation_pb2.SecAggReveal
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[_secure_aggregation_pb2.SecAggReveal, _Mapping]] = ...) -> None: ...
    class SharesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: _secure_aggregation_pb2.SecAggShares
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[_secure_aggregation_pb2.SecAggShares, _Mapping]] = ...) -> None: ...
    class AgreementsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: _secure_aggregation_pb2.SecAggAgreement
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[_secure_aggregation_pb2.SecAggAgreement, _Mapping]] = ...) -> None: ...
    REVEALS_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    AGREEMENTS_FIELD_NUMBER: _ClassVar[int]
    reveals: _containers.MessageMap[int, _secure_aggregation_pb2.SecAggReveal]
    shares: _containers.MessageMap[int, _secure_aggregation_pb2.SecAggShares]
    agreements: _containers.MessageMap[int, _secure_aggregation_pb2.SecAggAgreement]
    def __init__(self, reveals: _Optional[_Mapping[int, _secure_aggregation_pb2.SecAggReveal]] = ..., shares: _Optional[_Mapping[int, _secure_aggregation_pb2.SecAggShares]] = ..., agreements: _Optional[_Mapping[int, _secure_aggregation_pb2.SecAggAgreement]] = ...) -> None: ...

class SecAggSummed(_message.Message):
    __slots__ = ("clients", "sum")
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    clients: _containers.RepeatedScalarFieldContainer[int]
    sum: bytes
    def __init__(self, clients: _Optional[_Iterable[int]] = ..., sum: _Optional[bytes] = ...) -> None: ...

class SecAggUnmasking(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SecAggUnmasked(_message.Message):
    __slots__ = ("number", "unmask")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    UNMASK_FIELD_NUMBER: _ClassVar[int]
    number: int
    unmask: _secure_aggregation_pb2.SecAggUnmask
    def __init__(self, number: _Optional[int] = ..., unmask: _Optional[_Union[_secure_aggregation_pb2.SecAggUnmask, _Mapping]] = ...) -> None: ...
