from odp.v1 import events_query_pb2 as _events_query_pb2
from odp.v1 import statistics_pb2 as _statistics_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WordTerms(_message.Message):
    __slots__ = ("table", "events", "alphabet", "length")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    ALPHABET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    table: str
    events: _events_query_pb2.EventsQuery
    alphabet: str
    length: int
    def __init__(self, table: _Optional[str] = ..., events: _Optional[_Union[_events_query_pb2.EventsQuery, _Mapping]] = ..., alphabet: _Optional[str] = ..., length: _Optional[int] = ...) -> None: ...

class HeavyHitters(_message.Message):
    __slots__ = ("words", "first", "prefixes", "most_words", "threshold", "dense")
    WORDS_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    PREFIXES_FIELD_NUMBER: _ClassVar[int]
    MOST_WORDS_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    DENSE_FIELD_NUMBER: _ClassVar[int]
    words: WordTerms
    first: int
    prefixes: int
    most_words: int
    threshold: float
    dense: _statistics_pb2.DenseTerms
    def __init__(self, words: _Optional[_Union[WordTerms, _Mapping]] = ..., first: _Optional[int] = ..., prefixes: _Optional[int] = ..., most_words: _Optional[int] = ..., threshold: _Optional[float] = ..., dense: _Optional[_Union[_statistics_pb2.DenseTerms, _Mapping]] = ...) -> None: ...

class LocalHeavyHitters(_message.Message):
    __slots__ = ("words", "report_epsilon", "depths", "hashes", "buckets", "prefixes", "threshold", "most_reports")
    WORDS_FIELD_NUMBER: _ClassVar[int]
    REPORT_EPSILON_FIELD_NUMBER: _ClassVar[int]
    DEPTHS_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    PREFIXES_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    MOST_REPORTS_FIELD_NUMBER: _ClassVar[int]
    words: WordTerms
    report_epsilon: float
    depths: _containers.RepeatedScalarFieldContainer[int]
    hashes: int
    buckets: int
    prefixes: int
    threshold: float
    most_reports: int
    def __init__(self, words: _Optional[_Union[WordTerms, _Mapping]] = ..., report_epsilon: _Optional[float] = ..., depths: _Optional[_Iterable[int]] = ..., hashes: _Optional[int] = ..., buckets: _Optional[int] = ..., prefixes: _Optional[int] = ..., threshold: _Optional[float] = ..., most_reports: _Optional[int] = ...) -> None: ...
