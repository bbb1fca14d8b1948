from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EventsQuery(_message.Message):
    __slots__ = ("type", "item_columns", "buckets", "edges", "value_column", "aggregate", "filters", "max_age_seconds", "most_events")
    class Aggregate(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        AGGREGATE_UNSPECIFIED: _ClassVar[EventsQuery.Aggregate]
        AGGREGATE_LAST: _ClassVar[EventsQuery.Aggregate]
        AGGREGATE_SUM: _ClassVar[EventsQuery.Aggregate]
        AGGREGATE_MEAN: _ClassVar[EventsQuery.Aggregate]
        AGGREGATE_MAX: _ClassVar[EventsQuery.Aggregate]
        AGGREGATE_MIN: _ClassVar[EventsQuery.Aggregate]
        AGGREGATE_COUNT: _ClassVar[EventsQuery.Aggregate]
        AGGREGATE_EACH: _ClassVar[EventsQuery.Aggregate]
    AGGREGATE_UNSPECIFIED: EventsQuery.Aggregate
    AGGREGATE_LAST: EventsQuery.Aggregate
    AGGREGATE_SUM: EventsQuery.Aggregate
    AGGREGATE_MEAN: EventsQuery.Aggregate
    AGGREGATE_MAX: EventsQuery.Aggregate
    AGGREGATE_MIN: EventsQuery.Aggregate
    AGGREGATE_COUNT: EventsQuery.Aggregate
    AGGREGATE_EACH: EventsQuery.Aggregate
    TYPE_FIELD_NUMBER: _ClassVar[int]
    ITEM_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    EDGES_FIELD_NUMBER: _ClassVar[int]
    VALUE_COLUMN_FIELD_NUMBER: _ClassVar[int]
    AGGREGATE_FIELD_NUMBER: _ClassVar[int]
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    MAX_AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MOST_EVENTS_FIELD_NUMBER: _ClassVar[int]
    type: str
    item_columns: _containers.RepeatedScalarFieldContainer[str]
    buckets: int
    edges: bytes
    value_column: str
    aggregate: EventsQuery.Aggregate
    filters: _containers.RepeatedCompositeFieldContainer[EventsFilter]
    max_age_seconds: int
    most_events: int
    def __init__(self, type: _Optional[str] = ..., item_columns: _Optional[_Iterable[str]] = ..., buckets: _Optional[int] = ..., edges: _Optional[bytes] = ..., value_column: _Optional[str] = ..., aggregate: _Optional[_Union[EventsQuery.Aggregate, str]] = ..., filters: _Optional[_Iterable[_Union[EventsFilter, _Mapping]]] = ..., max_age_seconds: _Optional[int] = ..., most_events: _Optional[int] = ...) -> None: ...

class EventsFilter(_message.Message):
    __slots__ = ("column", "comparison", "number", "text", "truth")
    class Comparison(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        COMPARISON_UNSPECIFIED: _ClassVar[EventsFilter.Comparison]
        COMPARISON_EQUAL: _ClassVar[EventsFilter.Comparison]
        COMPARISON_NOT_EQUAL: _ClassVar[EventsFilter.Comparison]
        COMPARISON_AT_LEAST: _ClassVar[EventsFilter.Comparison]
        COMPARISON_AT_MOST: _ClassVar[EventsFilter.Comparison]
        COMPARISON_ABOVE: _ClassVar[EventsFilter.Comparison]
        COMPARISON_BELOW: _ClassVar[EventsFilter.Comparison]
    COMPARISON_UNSPECIFIED: EventsFilter.Comparison
    COMPARISON_EQUAL: EventsFilter.Comparison
    COMPARISON_NOT_EQUAL: EventsFilter.Comparison
    COMPARISON_AT_LEAST: EventsFilter.Comparison
    COMPARISON_AT_MOST: EventsFilter.Comparison
    COMPARISON_ABOVE: EventsFilter.Comparison
    COMPARISON_BELOW: EventsFilter.Comparison
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    COMPARISON_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TRUTH_FIELD_NUMBER: _ClassVar[int]
    column: str
    comparison: EventsFilter.Comparison
    number: float
    text: str
    truth: bool
    def __init__(self, column: _Optional[str] = ..., comparison: _Optional[_Union[EventsFilter.Comparison, str]] = ..., number: _Optional[float] = ..., text: _Optional[str] = ..., truth: _Optional[bool] = ...) -> None: ...
