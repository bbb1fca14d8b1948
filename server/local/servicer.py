"""LocalService: devices draw rows and hand in reports; the operator reads what they say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from odp.errors import Refusal
from odp.signed.task import HASH_BYTES, check_length, open_task
from odp.transport.logs import Log, short
from odp.transport.service import Later, NotFound, servicer
from odp.v1 import local_pb2, local_pb2_grpc
from server.local.desk import Desk
from server.local.steps import reporter_of
from server.operator_token import OperatorToken
from server.storage import Storage, TaskRecord, TaskState
from server.storage.reports import ID_BYTES

NAME = "odp.v1.LocalService"
_CANCELLED = TaskState.CANCELLING, TaskState.CANCELLED
_TAKEN = local_pb2.ReportResponse()


def local_servicer(
    *, storage: Storage, desk: Desk, operator: OperatorToken, log: Log
) -> local_pb2_grpc.LocalServiceServicer:
    """``desk`` as gRPC methods. Results are for the operator."""

    def task_of(sha256: bytes) -> TaskRecord:
        task = storage.task(sha256)
        if task is None or task.planned_rounds:
            raise NotFound(f"task {short(sha256)} is no task of local trust of this server")
        return task

    def over(sha256: bytes) -> Refusal:
        """Why a task that is not open takes no report."""
        task = task_of(sha256)
        if task.state is TaskState.ACTIVE:
            raise NotFound(f"task {short(sha256)} is not open yet; try again soon")
        return Refusal.TASK_ABANDONED if task.state in _CANCELLED else Refusal.ROUND_CLOSED

    def draw(request: local_pb2.DrawRequest, _: object) -> local_pb2.DrawResponse:
        check_length("task_sha256", request.task_sha256, HASH_BYTES)
        if (row := desk.draw(request.task_sha256)) is None:
            raise NotFound(f"task {short(request.task_sha256)} is over: {over(request.task_sha256).name}")
        return local_pb2.DrawResponse(row=row)

    def report(request: local_pb2.ReportRequest, _: object) -> local_pb2.ReportResponse | Later:
        sha256 = request.task_sha256
        check_length("task_sha256", sha256, HASH_BYTES)
        check_length("report_id", request.report_id, ID_BYTES)
        done = desk.report(sha256, request.report_id, request.report, token=request.token, period=request.period)
        if done is not None:
            return Later(done, _answer)
        return Later(desk.refuse(sha256, request.report_id, over(sha256)), _answer)

    def results(request: local_pb2.GetResultsRequest, context: grpc.ServicerContext) -> local_pb2.GetResultsResponse:
        operator.require(context)
        check_length("task_sha256", request.task_sha256, HASH_BYTES)
        if (reporter := reporter_of(open_task(task_of(request.task_sha256).signed))) is None:
            raise NotFound(f"task {short(request.task_sha256)} takes no reports")
        count, summary = desk.summary(request.task_sha256, reporter)
        return local_pb2.GetResultsResponse(reports=count, summary=summary)

    return servicer(local_pb2_grpc.LocalServiceServicer, log, {"Draw": draw, "Report": report, "GetResults": results})


def immediate(desk: Desk) -> dict[str, Callable[[Any], bool]]:
    """The calls that the event loop answers itself (``odp.transport.service.serve``)."""
    # Of an open task both need its memory alone: a draw is a look-up, and a report is put into a queue.
    return dict.fromkeys((f"/{NAME}/Draw", f"/{NAME}/Report"), lambda request: desk.is_open(request.task_sha256))


def _answer(refusal: Refusal | None) -> local_pb2.ReportResponse:
    if refusal is None:
        return _TAKEN
    return local_pb2.ReportResponse(refusal=refusal.value)  # type: ignore[arg-type]  # the numbers of odp.v1.Refusal
