from odp.v1 import events_query_pb2 as _events_query_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DenseTerms(_message.Message):
    __slots__ = ("clip", "grid_bits", "noise_std", "maximum")
    CLIP_FIELD_NUMBER: _ClassVar[int]
    GRID_BITS_FIELD_NUMBER: _ClassVar[int]
    NOISE_STD_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    clip: float
    grid_bits: int
    noise_std: float
    maximum: int
    def __init__(self, clip: _Optional[float] = ..., grid_bits: _Optional[int] = ..., noise_std: _Optional[float] = ..., maximum: _Optional[int] = ...) -> None: ...

class Statistics(_message.Message):
    __slots__ = ("queries", "dense")
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    DENSE_FIELD_NUMBER: _ClassVar[int]
    queries: _containers.RepeatedCompositeFieldContainer[StatisticsQuery]
    dense: DenseTerms
    def __init__(self, queries: _Optional[_Iterable[_Union[StatisticsQuery, _Mapping]]] = ..., dense: _Optional[_Union[DenseTerms, _Mapping]] = ...) -> None: ...

class StatisticsQuery(_message.Message):
    __slots__ = ("name", "table", "column", "share", "histogram", "mean", "events")
    class Column(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        COLUMN_UNSPECIFIED: _ClassVar[StatisticsQuery.Column]
        COLUMN_ITEM: _ClassVar[StatisticsQuery.Column]
        COLUMN_VALUE: _ClassVar[StatisticsQuery.Column]
    COLUMN_UNSPECIFIED: StatisticsQuery.Column
    COLUMN_ITEM: StatisticsQuery.Column
    COLUMN_VALUE: StatisticsQuery.Column
    NAME_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    HISTOGRAM_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    table: str
    column: StatisticsQuery.Column
    share: float
    histogram: HistogramQuery
    mean: MeanQuery
    events: _events_query_pb2.EventsQuery
    def __init__(self, name: _Optional[str] = ..., table: _Optional[str] = ..., column: _Optional[_Union[StatisticsQuery.Column, str]] = ..., share: _Optional[float] = ..., histogram: _Optional[_Union[HistogramQuery, _Mapping]] = ..., mean: _Optional[_Union[MeanQuery, _Mapping]] = ..., events: _Optional[_Union[_events_query_pb2.EventsQuery, _Mapping]] = ...) -> None: ...

class HistogramQuery(_message.Message):
    __slots__ = ("bins", "edges", "counting", "clip", "labels")
    class Counting(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        COUNTING_UNSPECIFIED: _ClassVar[HistogramQuery.Counting]
        COUNTING_USERS: _ClassVar[HistogramQuery.Counting]
        COUNTING_RECORDS: _ClassVar[HistogramQuery.Counting]
        COUNTING_SHARES: _ClassVar[HistogramQuery.Counting]
    COUNTING_UNSPECIFIED: HistogramQuery.Counting
    COUNTING_USERS: HistogramQuery.Counting
    COUNTING_RECORDS: HistogramQuery.Counting
    COUNTING_SHARES: HistogramQuery.Counting
    BINS_FIELD_NUMBER: _ClassVar[int]
    EDGES_FIELD_NUMBER: _ClassVar[int]
    COUNTING_FIELD_NUMBER: _ClassVar[int]
    CLIP_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    bins: int
    edges: bytes
    counting: HistogramQuery.Counting
    clip: float
    labels: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, bins: _Optional[int] = ..., edges: _Optional[bytes] = ..., counting: _Optional[_Union[HistogramQuery.Counting, str]] = ..., clip: _Optional[float] = ..., labels: _Optional[_Iterable[str]] = ...) -> None: ...

class MeanQuery(_message.Message):
    __slots__ = ("low", "high", "max_records")
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    MAX_RECORDS_FIELD_NUMBER: _ClassVar[int]
    low: float
    high: float
    max_records: int
    def __init__(self, low: _Optional[float] = ..., high: _Optional[float] = ..., max_records: _Optional[int] = ...) -> None: ...
