"""Pauses between attempts that fail in a row."""

from __future__ import annotations

from odp.transport.sweeping import pause_after


def test_pauses_double_up_to_the_longest_however_long_an_outage_lasts() -> None:
    assert [pause_after(failures, first=0.5, longest=30.0) for failures in range(1, 9)] == [
        0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0,
    ]  # fmt: skip
    assert pause_after(10**9, first=0.05, longest=2.0) == 2.0
