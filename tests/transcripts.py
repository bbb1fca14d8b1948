"""The comparison of transcripts: what a device says to the outside and hears from it, call by call, and when.

``Transcript`` records the calls of a device's channels. ``Observation`` is all that the outside sees of one run: its
calls, how it ended, what it was charged. ``compare`` takes several observations of each of two devices that differ in
private data alone, and fails with the first difference. Everything but time has to be equal in every run; for times
see ``transcript_times``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from transcript_times import FALSE_ALARMS, RESOLUTION, Batch, Shift, first_shift

#: The pause before a call is its time since the latest answer before it; the last one is that of the run's end.
END = "the end of the run"


@dataclass(frozen=True)
class Call:
    """One call: sizes in bytes; ``began`` and ``ended`` in seconds of a clock that only grows, which no comparison of
    values looks at. ``refusal`` is the number that an answer to a contribution carries."""

    method: str
    sent: tuple[int, ...]
    status: str
    received: tuple[int, ...]
    refusal: int = 0
    began: float = field(default=0.0, compare=False)
    ended: float = field(default=0.0, compare=False)

    @property
    def name(self) -> str:
        """The method without its service."""
        return self.method.rpartition("/")[2]

    def __str__(self) -> str:
        refused = f", refusal={self.refusal}" if self.refusal else ""
        return f"{self.name}(sent={list(self.sent)}, {self.status}, received={list(self.received)}{refused})"


class Transcript(
    grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor, grpc.StreamUnaryClientInterceptor
):
    """Calls in the order in which they began."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: list[Call] = []

    @property
    def calls(self) -> list[Call]:
        """Those that have ended."""
        with self._lock:
            return sorted(self._calls, key=lambda call: call.began)

    def over(self, connect: Callable[..., grpc.Channel]) -> Callable[..., grpc.Channel]:
        """``connect`` with every call of its channels recorded."""
        return lambda *given, **options: grpc.intercept_channel(connect(*given, **options), self)

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        began = time.monotonic()
        call = continuation(details, request)
        self._add(_named(details, request), began, (request.ByteSize(),), call.code(), self._answer(call))
        return call

    def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        began = time.monotonic()
        call = continuation(details, request)
        replies: list[Any] = []

        def read() -> Iterator[Any]:
            for reply in call:
                replies.append(reply)
                yield reply
            self._add(details.method, began, (request.ByteSize(),), call.code(), replies)

        return read()

    def intercept_stream_unary(self, continuation: Any, details: Any, requests: Any) -> Any:
        sizes: list[int] = []
        began = time.monotonic()

        def counted() -> Iterator[Any]:
            for request in requests:
                sizes.append(request.ByteSize())
                yield request

        call = continuation(details, counted())
        code = call.code()
        self._add(details.method, began, tuple(sizes), code, self._answer(call))
        return call

    @staticmethod
    def _answer(call: Any) -> list[Any]:
        return [call.result()] if call.code() is grpc.StatusCode.OK else []

    def _add(self, method: str, began: float, sent: tuple[int, ...], code: Any, replies: Sequence[Any]) -> None:
        # A signature of evidence may be a byte longer or shorter than the one before, whoever asked for it.
        sizes = () if method.endswith("/GetEvidence") else tuple(reply.ByteSize() for reply in replies)
        refusal = next((int(reply.refusal) for reply in replies if hasattr(reply, "refusal")), 0)
        call = Call(method, sent, code.name, sizes, refusal, began, time.monotonic())
        with self._lock:
            self._calls.append(call)


def _named(details: Any, request: Any) -> str:
    """The method; of a step in a session, which message it carries."""
    steps = [group.name for group in request.DESCRIPTOR.oneofs]
    message = request.WhichOneof("message") if "message" in steps else None
    return f"{details.method} {message}" if message else str(details.method)


@dataclass(frozen=True)
class Observation:
    """All that the outside sees of one run of one device or host, and what the run cost.

    ``outcome`` is how the run ended, in one line; ``charged`` and ``ledger`` are of the devices' own ledgers, in any
    form that compares; ``ended`` is when the run ended, on the clock of the calls; ``began`` is the public moment
    that the times of a host with several devices are relative to. Calls of one device are in the order in which they
    began, those of several devices in that order for each method: which device calls first is chance.
    """

    calls: tuple[Call, ...]
    outcome: str
    charged: tuple[Any, ...]
    ledger: tuple[Any, ...]
    ended: float = field(compare=False)
    began: float | None = field(default=None, compare=False)
    #: Contributions without data: nobody outside sees which they are.
    empty: int = field(default=0, compare=False)

    @classmethod
    def of(cls, calls: Sequence[Call], *, devices: int, but: Sequence[str] = (), **rest: Any) -> Observation:
        """Of the calls of a host with so many devices, ``but`` those of some methods: polls, of which chance decides
        how many there are."""
        counted = tuple(call for call in calls if call.name not in but)
        if devices == 1:
            return cls(counted, **rest)
        ordered = tuple(sorted(counted, key=lambda call: (call.name, call.began)))
        return cls(ordered, began=min((call.ended for call in counted), default=0.0), **rest)

    @property
    def times(self) -> dict[str, float]:
        """Seconds by what they end with: what the device decided by itself.

        Of one device, between the latest answer and each next call, and the end; the first call has none: before it the
        outside knows of nothing. Of several devices, from the first answer to each call.
        """
        if self.began is not None:
            numbers: dict[str, int] = {}
            times = {}
            for call in self.calls:
                numbers[call.name] = numbers.get(call.name, 0) + 1
                times[f"{call.name} {numbers[call.name]}"] = call.began - self.began
            return {**times, END: self.ended - self.began}
        pauses: dict[str, float] = {}
        answered = self.calls[0].ended if self.calls else self.ended
        for number, call in enumerate(self.calls[1:], 1):
            pauses[f"call {number + 1}, {call.name}"] = call.began - answered
            answered = max(answered, call.ended)
        pauses[END] = self.ended - answered
        return pauses


class TranscriptsDiffer(AssertionError):
    """Two devices can be told apart; the text is the first difference."""


def compare(
    first: Sequence[Sequence[Observation]],
    second: Sequence[Sequence[Observation]],
    *,
    names: tuple[str, str] = ("the first device", "the second device"),
    resolution: float = RESOLUTION,
) -> None:
    """Returns if the outside cannot tell two devices apart.

    Args:
      first, second: observations of each device, in batches: runs of one batch came in an order drawn at random.
      names: for the text of the error.
      resolution: seconds by which times may be shifted.

    Raises:
      TranscriptsDiffer: a call, a size, an answer, the outcome or a charge differs in any two runs; or a time is
        shifted by more than ``resolution``, at the false-alarm rate of ``transcript_times``.
    """
    difference = first_difference(first, second, names=names)
    if difference is None:
        shift = first_shift_of(first, second, resolution=resolution)
        if shift is None:
            return
        difference = shift.text(names)
    raise TranscriptsDiffer(difference)


def first_difference(
    first: Sequence[Sequence[Observation]], second: Sequence[Sequence[Observation]], *, names: tuple[str, str]
) -> str | None:
    """The first thing but time in which two observations differ; None without one."""
    one, *others = [
        (names[arm], run) for arm, batches in enumerate((first, second)) for batch in batches for run in batch
    ]
    for other in others:
        text = _difference(one, other)
        if text is not None:
            return text
    return None


def _difference(first: tuple[str, Observation], second: tuple[str, Observation]) -> str | None:
    (one, left), (other, right) = first, second
    if left == right:
        return None
    for number in range(max(len(left.calls), len(right.calls))):
        calls = [run.calls[number] if number < len(run.calls) else None for run in (left, right)]
        if calls[0] != calls[1]:
            shown = [str(call) if call is not None else f"no call (it ended: {run.outcome})" for call, run in
                     zip(calls, (left, right), strict=True)]  # fmt: skip
            before = " ".join(call.name for call in left.calls[:number]) or "nothing"
            return f"call {number + 1} differs, after {before}:\n  {one}: {shown[0]}\n  {other}: {shown[1]}"
    for what in ("outcome", "charged", "ledger"):
        if getattr(left, what) != getattr(right, what):
            return f"{what} differs:\n  {one}: {getattr(left, what)}\n  {other}: {getattr(right, what)}"
    raise AssertionError("unequal observations without a difference")


def first_shift_of(
    first: Sequence[Sequence[Observation]],
    second: Sequence[Sequence[Observation]],
    *,
    resolution: float,
    false_alarms: float = FALSE_ALARMS,
) -> Shift | None:
    """The first shift between the times of observations that are equal otherwise."""
    batches = [
        Batch(tuple(run.times for run in left), tuple(run.times for run in right))
        for left, right in zip(first, second, strict=True)
    ]
    return first_shift(batches, resolution=resolution, false_alarms=false_alarms)
