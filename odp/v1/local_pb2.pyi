from odp.v1 import aggregator_pb2 as _aggregator_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DrawRequest(_message.Message):
    __slots__ = ("task_sha256",)
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    task_sha256: bytes
    def __init__(self, task_sha256: _Optional[bytes] = ...) -> None: ...

class DrawResponse(_message.Message):
    __slots__ = ("row",)
    ROW_FIELD_NUMBER: _ClassVar[int]
    row: bytes
    def __init__(self, row: _Optional[bytes] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("task_sha256", "report_id", "report", "token", "period")
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    REPORT_ID_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    PERIOD_FIELD_NUMBER: _ClassVar[int]
    task_sha256: bytes
    report_id: bytes
    report: bytes
    token: bytes
    period: int
    def __init__(self, task_sha256: _Optional[bytes] = ..., report_id: _Optional[bytes] = ..., report: _Optional[bytes] = ..., token: _Optional[bytes] = ..., period: _Optional[int] = ...) -> None: ...

class ReportResponse(_message.Message):
    __slots__ = ("refusal",)
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    refusal: _aggregator_pb2.Refusal
    def __init__(self, refusal: _Optional[_Union[_aggregator_pb2.Refusal, str]] = ...) -> None: ...

class GetResultsRequest(_message.Message):
    __slots__ = ("task_sha256",)
    TASK_SHA256_FIELD_NUMBER: _ClassVar[int]
    task_sha256: bytes
    def __init__(self, task_sha256: _Optional[bytes] = ...) -> None: ...

class GetResultsResponse(_message.Message):
    __slots__ = ("reports", "summary")
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    reports: int
    summary: bytes
    def __init__(self, reports: _Optional[int] = ..., summary: _Optional[bytes] = ...) -> None: ...
