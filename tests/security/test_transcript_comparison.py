"""R352: the comparison of transcripts finds what differs, and what it calls alike is alike at its resolution."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from security.outside import busy, told_apart
from transcript_times import FALSE_ALARMS, RESOLUTION, RUNS, Batch, chance_of, first_shift, pairs_in_order
from transcripts import Call, Observation, TranscriptsDiffer, compare


def observation(
    *pauses: float, outcome: str = "ended", sizes: tuple[int, ...] = (3, 34, 255), refusal: int = 0
) -> Observation:
    """A run with a call after each pause; each call takes 1 ms."""
    calls, now = [], 0.0
    for number, pause in enumerate(pauses):
        now += pause
        name = ("CheckIn", "GetEvidence", "Submit")[number]
        calls.append(Call(f"/odp.v1.Service/{name}", (sizes[number],), "OK", (0,), refusal, now, now + 1e-3))
        now += 1e-3
    return Observation.of(calls, devices=1, outcome=outcome, charged=(), ledger=(), ended=now)


ALIKE = observation(0.0, 0.002, 0.25)


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (observation(0.0, 0.002), r"call 3 differs, after CheckIn GetEvidence:\n  empty: Submit.*\n  full: no call"),
        (observation(0.0, 0.002, 0.25, sizes=(3, 34, 256)), r"sent=\[255\].*\n  full: Submit\(sent=\[256\]"),
        (observation(0.0, 0.002, 0.25, refusal=4), "refusal=4"),
        (observation(0.0, 0.002, 0.25, outcome="PrivacyError: no"), r"outcome differs:\n.*ended\n.*PrivacyError: no"),
    ],
)
def test_r352_the_first_difference_is_named(other: Observation, difference: str) -> None:
    with pytest.raises(TranscriptsDiffer, match=difference):
        compare([[ALIKE] * 4], [[ALIKE, ALIKE, ALIKE, other]], names=("empty", "full"))
    compare([[ALIKE] * 4], [[ALIKE] * 4])


def test_r352_a_call_that_comes_later_is_found_and_named() -> None:
    later = observation(0.0, 0.002, 0.25 + 2 * RESOLUTION)
    with pytest.raises(TranscriptsDiffer, match=r"time of call 3, Submit differs .*\n.*250\.0 ms\n.*270\.0 ms"):
        compare([[ALIKE] * RUNS] * 5, [[later] * RUNS] * 5)
    # Of a host with several devices, times are counted from its first answer.
    rest: dict[str, Any] = {"outcome": "ended", "charged": (), "ledger": (), "ended": 1.0}
    host = [Observation.of(run.calls, devices=2, **rest) for run in (ALIKE, later)]
    with pytest.raises(TranscriptsDiffer, match="time of Submit 1 differs"):
        compare([[host[0]] * RUNS] * 5, [[host[1]] * RUNS] * 5)


def test_r352_a_shift_within_the_resolution_is_none() -> None:
    later = observation(0.0, 0.002, 0.25 + RESOLUTION / 2)
    compare([[ALIKE] * RUNS] * 5, [[later] * RUNS] * 5)


@pytest.mark.parametrize(("first", "second"), [(1, 1), (2, 3), (4, 4)])
def test_r352_the_chance_of_an_order_is_that_of_all_orders_counted(first: int, second: int) -> None:
    counts = np.zeros(first * second + 1)
    for places in itertools.combinations(range(first + second), first):
        others = [place for place in range(first + second) if place not in places]
        counts[sum(other > place for place in places for other in others)] += 1
    np.testing.assert_allclose(pairs_in_order(first, second), counts / math.comb(first + second, first), rtol=1e-14)


def test_r352_a_machine_that_becomes_slower_makes_no_false_alarm() -> None:
    """Times that drift, and stall at random: what falls to which device is chance. 2,000 trials, each with a chance of
    false alarm of at most 1 %; more than 45 would have a chance of 1e-6."""
    generator = np.random.default_rng(7)
    alarms = 0
    for _ in range(2000):
        batches = []
        for batch in range(5):
            times = 0.25 + 0.1 * np.arange(8) + batch + generator.exponential(0.05, 8)
            order = generator.permutation(8)
            runs = [{"Submit": float(times[place])} for place in order]
            batches.append(Batch(tuple(runs[:4]), tuple(runs[4:])))
        alarms += first_shift(batches, resolution=0.0, false_alarms=0.01) is not None
    assert alarms <= 45


def test_r352_five_batches_without_overlap_are_certain() -> None:
    batch = Batch(({"Submit": 0.25},) * RUNS, ({"Submit": 0.3},) * RUNS)
    assert chance_of([batch] * 5, "Submit", resolution=RESOLUTION) < FALSE_ALARMS / 100
    assert chance_of([batch], "Submit", resolution=RESOLUTION) == pytest.approx(1 / math.comb(2 * RUNS, RUNS))


def device(seconds: Callable[[str], float]) -> Callable[[str], Callable[[], Observation]]:
    """A device that waits before its upload, on the real clock."""

    def prepare(arm: str) -> Callable[[], Observation]:
        return functools.partial(observe, seconds(arm))

    def observe(wait: float) -> Observation:
        began = time.monotonic()
        time.sleep(wait)
        now = time.monotonic()
        first = Call("/s/CheckIn", (3,), "OK", (0,), began=began, ended=began)
        calls = [first, Call("/s/Submit", (9,), "OK", (0,), began=now)]
        return Observation.of(calls, devices=1, outcome="ended", charged=(((b"task", 0),),), ledger=(), ended=now)

    return prepare


def test_r352_on_a_busy_machine_devices_that_are_alike_are_not_told_apart() -> None:
    """On the real clock, with two busy loops beside it."""
    with busy(2):
        assert told_apart(device(lambda arm: 0.02), "first", "second", least_batches=3) is None


def test_r352_noise_of_a_machine_hides_no_shift_that_is_larger() -> None:
    """Simulated times, each late by 10 ms on average: a shift of 100 ms more than the resolution is always found."""
    generator = np.random.default_rng(5)
    drift = itertools.count()

    def prepare(arm: str) -> Callable[[], Observation]:
        now = 1e-3 * next(drift) + 0.25 + generator.exponential(0.01) + (RESOLUTION + 0.1) * (arm == "second")
        run = observation(0.0, 0.002, now)
        return lambda: dataclasses.replace(run, charged=(((b"task", 0),),))

    for trial in range(20):
        difference = told_apart(prepare, "first", "second", seed=trial)
        assert difference is not None
        assert difference.startswith("the time of call 3, Submit differs")


def test_r352_one_late_call_of_many_devices_is_found() -> None:
    """Of a host with 60 devices: the more times there are, the more certain each has to be."""

    def prepare(arm: str) -> Callable[[], Observation]:
        late = 6 * RESOLUTION * (arm == "second")
        calls = [
            Call("/s/Submit", (9,), "OK", (0,), began=0.1 * device + late * (device == 33)) for device in range(60)
        ]
        rest: dict[str, Any] = {"charged": (((b"task", 0),),), "ledger": (), "ended": 7.0}
        return lambda: Observation.of(calls, devices=60, outcome="ended", **rest)

    assert told_apart(prepare, "first", "first") is None
    difference = told_apart(prepare, "first", "second")
    assert difference is not None
    assert difference.startswith("the time of Submit 34 differs")
