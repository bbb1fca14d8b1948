"""Spans around the steps of a task that change something."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from odp.transport import tracing
from odp.transport.logs import short
from server.storage import TaskRecord, VersionRecord

_Result = TypeVar("_Result")


def traced(name: str) -> Callable[[Callable[..., _Result]], Callable[..., _Result]]:
    """A step of (task, version, ..) within a span, which says the task and the round."""

    def decorate(step: Callable[..., _Result]) -> Callable[..., _Result]:
        @functools.wraps(step)
        def within(driver: Any, task: TaskRecord, version: VersionRecord, *rest: Any) -> _Result:
            with tracing.span(name, task=short(task.sha256), round=version.version):
                return step(driver, task, version, *rest)

        return within

    return decorate
