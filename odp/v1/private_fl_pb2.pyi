from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class PrivateReportTerms(_message.Message):
    __slots__ = ("cap_height", "cap_probability", "largest_norm", "levels", "magnitude_epsilon", "most_participations")
    CAP_HEIGHT_FIELD_NUMBER: _ClassVar[int]
    CAP_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    LARGEST_NORM_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    MAGNITUDE_EPSILON_FIELD_NUMBER: _ClassVar[int]
    MOST_PARTICIPATIONS_FIELD_NUMBER: _ClassVar[int]
    cap_height: float
    cap_probability: float
    largest_norm: float
    levels: int
    magnitude_epsilon: float
    most_participations: int
    def __init__(self, cap_height: _Optional[float] = ..., cap_probability: _Optional[float] = ..., largest_norm: _Optional[float] = ..., levels: _Optional[int] = ..., magnitude_epsilon: _Optional[float] = ..., most_participations: _Optional[int] = ...) -> None: ...
