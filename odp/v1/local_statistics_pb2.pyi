from odp.v1 import statistics_pb2 as _statistics_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReportTerms(_message.Message):
    __slots__ = ("queries", "report_epsilon", "levels")
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    REPORT_EPSILON_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    queries: _containers.RepeatedCompositeFieldContainer[_statistics_pb2.StatisticsQuery]
    report_epsilon: float
    levels: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, queries: _Optional[_Iterable[_Union[_statistics_pb2.StatisticsQuery, _Mapping]]] = ..., report_epsilon: _Optional[float] = ..., levels: _Optional[_Iterable[int]] = ...) -> None: ...

class LocalStatistics(_message.Message):
    __slots__ = ("reports", "most_reports")
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    MOST_REPORTS_FIELD_NUMBER: _ClassVar[int]
    reports: ReportTerms
    most_reports: int
    def __init__(self, reports: _Optional[_Union[ReportTerms, _Mapping]] = ..., most_reports: _Optional[int] = ...) -> None: ...

class ShuffledStatistics(_message.Message):
    __slots__ = ("reports", "honest", "maximum")
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    HONEST_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    reports: ReportTerms
    honest: int
    maximum: int
    def __init__(self, reports: _Optional[_Union[ReportTerms, _Mapping]] = ..., honest: _Optional[int] = ..., maximum: _Optional[int] = ...) -> None: ...
