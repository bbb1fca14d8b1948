"""Logs: one line per event, whatever the values are, and never an array or a byte string."""

from __future__ import annotations

import errno
import io
import json

import numpy as np
import pytest

from odp.transport.logs import Log, short


def _lines(as_json: bool = False) -> tuple[Log, io.StringIO]:
    stream = io.StringIO()
    return Log("server", stream=stream, as_json=as_json, clock=lambda: 1_700_000_000.5), stream


def test_an_event_is_one_line_of_time_level_program_and_fields() -> None:
    log, stream = _lines()
    log.event("round_open", task="ab12", round=3, share=0.1234567891, ok=True, none=None)
    assert stream.getvalue() == (
        "2023-11-14T22:13:20.500Z info server round_open task=ab12 round=3 share=0.123457 ok=True none=None\n"
    )


@pytest.mark.parametrize("hostile", ["a\nb", "a\r\x1b[2Jb", "\x00", "\x7f", "\u2028", "", 'a"b', "a=b"])
def test_a_hostile_text_stays_one_printable_field(hostile: str) -> None:
    log, stream = _lines()
    log.warning("refused", reason=hostile)
    line = stream.getvalue()
    assert line.count("\n") == 1
    assert line.rstrip("\n").isprintable()
    assert json.loads(line.split("reason=", 1)[1]) == hostile


def test_a_long_text_is_cut() -> None:
    log, stream = _lines()
    log.error("refused", reason="x" * 10_000)
    assert len(stream.getvalue()) < 300


@pytest.mark.parametrize("value", [b"key", np.zeros(3), [1.0], (1,), np.float32(1.0), {"a": 1}])
def test_anything_but_numbers_and_text_is_refused(value: object) -> None:
    log, stream = _lines()
    with pytest.raises(TypeError, match="log field row is a"):
        log.event("x", row=value)  # type: ignore[arg-type]
    assert stream.getvalue() == ""


def test_json_lines_are_json_also_for_numbers_that_json_lacks() -> None:
    log, stream = _lines(as_json=True)
    log.event("spent", epsilon=float("inf"), rmse=float("nan"), round=1)

    def refuse(name: str) -> float:
        raise AssertionError(name)

    read = json.loads(stream.getvalue(), parse_constant=refuse)
    assert read == {
        "time": "2023-11-14T22:13:20.500Z", "level": "info", "program": "server", "event": "spent",
        "epsilon": "inf", "rmse": "nan", "round": 1,
    }  # fmt: skip


def test_a_crash_names_the_place_in_the_code_and_never_the_message() -> None:
    log, stream = _lines()

    def inner() -> None:
        raise ValueError("rating 4.5 of film 17")

    try:
        inner()
    except ValueError as error:
        log.crash("internal_error", error)
    line = stream.getvalue()
    assert "kind=ValueError" in line
    assert "inner:" in line
    assert "4.5" not in line


def test_a_full_disk_under_the_log_does_not_stop_the_program() -> None:
    refused = []

    class Full(io.StringIO):
        def flush(self) -> None:
            refused.append(True)
            raise OSError(errno.ENOSPC, "No space left on device")

    Log("server", stream=Full()).event("still_here")
    assert refused, "the disk was full when the line was written"


def test_the_short_form_of_a_hash_is_twelve_digits() -> None:
    assert short(bytes(range(32))) == "000102030405"
