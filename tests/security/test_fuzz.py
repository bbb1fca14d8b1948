"""R45: whatever arrives, a decoder accepts it or says so with an error of its own, and never repeats a secret."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings, strategies as st
from security.decoders import ERRORS, Decoder, decoders

DECODERS = decoders()
HARNESS = Path(__file__).parent / "fuzz" / "harness.py"
RUNS = 20_000

#: All that a decoder of secrets may say.
SAID = {
    "",
    "no message",
    "contribution refused: MALFORMED",
    "contribution refused: OUT_OF_BOUNDS",
    "selected rows of 'items' have a wrong length of # bytes",
    "selected rows of 'items' hold a value that is not finite",
    "Expected # dense tables, got #",
    "table 'globals': its bytes do not have the manifest's SHA-#",
    "Expected table 'globals' of # bytes, got #",
}

_ids = {"argnames": "decoder", "argvalues": DECODERS, "ids": [decoder.name for decoder in DECODERS]}
_fuzz = settings(
    derandomize=True, database=None, deadline=None, max_examples=120, suppress_health_check=list(HealthCheck)
)


def changed(data: st.DataObject, accepted: bytes) -> bytes:
    """An accepted input with a few bytes changed, put in, taken out or doubled."""
    found = bytearray(accepted)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, max(len(found) - 1, 0)))
        how = data.draw(st.sampled_from(["flip", "put", "cut", "end", "double"]))
        if how == "flip" and found:
            found[place] ^= data.draw(st.integers(1, 255))
        elif how == "put":
            found[place:place] = data.draw(st.binary(min_size=1, max_size=9))
        elif how == "cut":
            del found[place : place + data.draw(st.integers(1, 9))]
        elif how == "end":
            del found[place:]
        else:
            found += found[place:]
    return bytes(found)


def decode(decoder: Decoder, data: bytes) -> str:
    """The error's text, or nothing."""
    try:
        decoder.decode(data)
    except DecodeError:
        return "no message"
    except ERRORS as error:
        return str(error)
    return ""


@pytest.mark.parametrize(**_ids)
def test_an_accepted_input_is_accepted_so_that_its_changes_reach_every_check(decoder: Decoder) -> None:
    decoder.decode(decoder.accepted)


@pytest.mark.parametrize(**_ids)
@_fuzz
@given(data=st.data())
@pytest.mark.slow
def test_changed_inputs_crash_nothing(decoder: Decoder, data: st.DataObject) -> None:
    decode(decoder, changed(data, decoder.accepted))


@pytest.mark.parametrize(**_ids)
@_fuzz
@given(data=st.binary(max_size=300))
@pytest.mark.slow
def test_any_bytes_crash_nothing(decoder: Decoder, data: bytes) -> None:
    decode(decoder, data)


@pytest.mark.parametrize("decoder", [one for one in DECODERS if one.private], ids=lambda decoder: decoder.name)
@_fuzz
@given(data=st.data(), whole=st.booleans())
def test_errors_about_a_secret_are_a_closed_set_of_lines(decoder: Decoder, data: st.DataObject, whole: bool) -> None:
    given_bytes = changed(data, decoder.accepted) if whole else data.draw(st.binary(max_size=120))
    # Lengths are the only numbers, and the host sees them anyway.
    assert re.sub(r"\d+", "#", decode(decoder, given_bytes)) in SAID


@pytest.mark.processes
@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="atheris is not installed: pip install '.[dev]'"
)
@pytest.mark.slow
def test_a_fuzzer_that_follows_branches_finds_no_crash(tmp_path: Path) -> None:
    finished = subprocess.run(
        [sys.executable, str(HARNESS), f"-runs={RUNS}", "-max_total_time=8", "-seed=1", "-max_len=2000"],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    assert "Done" in finished.stderr
