from __future__ import annotations

import threading
from collections.abc import Iterator

import grpc
import pytest

from odp.errors import Busy, ServiceError, ServiceUnavailable
from odp.transport.backpressure import LONGEST_WINDOW, Backpressure, Patience
from odp.transport.channel import SHORT_DEADLINE, call

SECONDS = 60.0


def backpressure(*, at_once: int = 1, waiting: int = 0, **options: object) -> Backpressure:
    return Backpressure(at_once=at_once, waiting=waiting, service="shop", what="guests", **options)  # type: ignore[arg-type]


def window(guests: Backpressure) -> tuple[float, float]:
    with pytest.raises(Busy, match="busy with other guests") as caught, guests.admitted():
        raise AssertionError("there was no place")
    return caught.value.low_seconds, caught.value.high_seconds


def test_those_who_are_sent_away_get_places_behind_each_other() -> None:
    guests = backpressure(clock=lambda: 0.0)
    with guests.admitted():
        windows = [window(guests) for _ in range(20)]
    lows = [low for low, _ in windows]
    assert lows == sorted(lows)
    assert lows[0] < lows[-1]
    assert all(0 < low < high for low, high in windows)


def test_nobody_is_sent_away_for_longer_than_the_longest_window() -> None:
    guests = backpressure(clock=lambda: 0.0)
    with guests.admitted():
        for _ in range(1000):
            low, high = window(guests)
    assert low < high <= LONGEST_WINDOW


def test_windows_follow_how_long_a_turn_takes() -> None:
    now = [0.0]

    def after(seconds: float) -> float:
        guests = backpressure(clock=lambda: now[0])
        for _ in range(20):
            with guests.admitted():
                now[0] += seconds
        with guests.admitted():
            return window(guests)[0]

    assert after(10.0) > 10 * after(0.2)


def test_a_place_passes_to_whoever_waited_longest() -> None:
    guests, order = backpressure(waiting=3), []
    leave = [threading.Event() for _ in range(4)]
    entered = [threading.Event() for _ in range(4)]

    def guest(number: int) -> None:
        with guests.admitted():
            order.append(number)
            entered[number].set()
            leave[number].wait(SECONDS)

    threads = []
    for number in range(4):
        threads.append(threading.Thread(target=guest, args=(number,)))
        threads[-1].start()
        if number == 0:
            assert entered[0].wait(SECONDS)
        while number and len(guests._queue) < number:
            threads[-1].join(0.001)
    window(guests)  # the queue is full
    for number in range(4):
        leave[number].set()
        assert number == 3 or entered[number + 1].wait(SECONDS)
    for thread in threads:
        thread.join(SECONDS)
    assert order == [0, 1, 2, 3]
    with guests.admitted():
        pass


def test_whoever_waits_too_long_is_sent_away_and_leaves_no_place_behind() -> None:
    guests = backpressure(waiting=1, longest=0.01)
    with guests.admitted():
        window(guests)
    with guests.admitted():
        pass


def test_a_failed_turn_gives_its_place_back() -> None:
    guests = backpressure()
    for _ in range(3):
        with pytest.raises(ValueError), guests.admitted():
            raise ValueError
    with guests.admitted():
        pass


class Shop:
    """Sends guests away ``times`` times, then serves."""

    def __init__(self, times: int, low: float = 1.0, high: float = 3.0) -> None:
        self.left = times
        self.window = low, high
        self.waits: list[float] = []
        self.stopped = False

    def patience(self, tries: int = 5) -> Patience:
        def wait(seconds: float) -> bool:
            self.waits.append(seconds)
            return self.stopped

        return Patience(tries=tries, wait=wait, uniform=lambda low, high: (low + high) / 2)

    def serve(self) -> str:
        if self.left:
            self.left -= 1
            raise Busy("busy", *self.window)
        return "served"

    def stream(self) -> Iterator[str]:
        yield self.serve()
        yield "more"


def test_a_caller_comes_back_within_its_window() -> None:
    shop = Shop(2)
    assert shop.patience().call(shop.serve) == "served"
    assert shop.waits == [2.0, 2.0]


def test_a_caller_reports_when_its_tries_are_used_up() -> None:
    shop = Shop(9)
    with pytest.raises(Busy):
        shop.patience(tries=4).call(shop.serve)
    assert (shop.left, len(shop.waits)) == (5, 3)


def test_a_caller_that_is_to_stop_does_not_come_back() -> None:
    shop = Shop(1)
    shop.stopped = True
    with pytest.raises(Busy):
        shop.patience().call(shop.serve)
    assert len(shop.waits) == 1


def test_a_window_of_hours_is_cut() -> None:
    shop = Shop(1, 5000.0, 9000.0)
    shop.patience().call(shop.serve)
    assert shop.waits == [LONGEST_WINDOW]


def test_a_stream_that_was_refused_starts_again_and_gives_each_reply_once() -> None:
    shop = Shop(2)
    assert list(shop.patience().stream(shop.stream)) == ["served", "more"]
    assert list(shop.patience().stream(lambda: iter(()))) == []


def test_the_window_reaches_the_caller_as_metadata_of_the_status(service) -> None:
    def busy(*_: object) -> bytes:
        raise Busy("the shop is busy", 0.25, 1.5)

    service.behave = busy
    with pytest.raises(ServiceUnavailable, match="could not buy: the shop is busy") as caught:
        call(service.method(), b"", timeout=SHORT_DEADLINE, what="buy", address="here")
    assert isinstance(caught.value, Busy)
    assert (caught.value.low_seconds, caught.value.high_seconds) == (0.25, 1.5)
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("words", ["", "5", "9-5", "-1-5", "1-2-3", "99999999-99999999", "a-b", "1.5-2"])
def test_a_window_that_makes_no_sense_is_an_error_of_the_service(words: str, service) -> None:
    def refuse(_: bytes, context: grpc.ServicerContext) -> bytes:
        context.set_trailing_metadata((("odp-retry-ms", words),))
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no")
        raise AssertionError

    service.behave = refuse
    with pytest.raises(ServiceError) as caught:
        call(service.method(), b"", timeout=SHORT_DEADLINE, what="buy", address="here")
    assert not isinstance(caught.value, Busy)
