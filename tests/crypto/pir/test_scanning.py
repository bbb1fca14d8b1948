"""The scan: numba's bytes are numpy's, one trace for all shares, and no mask becomes a branch in machine code."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from algorithms.tracing import traced, tracing
from hypothesis import given, settings, strategies as st

from odp.crypto.pir import scanning

ROWS, TABLES, COUNT = 300, 3, 12


def inputs(rows: int, lines: int, queries: int, *, seed: int = 0) -> tuple[np.ndarray, ...]:
    generator = np.random.default_rng(seed)
    records = generator.integers(0, 2**64, (rows, lines, 8), dtype=np.uint64)
    buckets = generator.integers(0, COUNT, (rows, TABLES)).astype(np.uint16)
    bits = generator.integers(0, 8 * 40, (rows, TABLES)).astype(np.uint32)
    return records, buckets, bits, generator.integers(0, 256, (queries, 40), dtype=np.uint8)


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 400), lines=st.integers(1, 4), queries=st.integers(1, 4), compiled=st.booleans())
def test_a_bucket_is_the_xor_of_its_picked_rows(rows: int, lines: int, queries: int, compiled: bool) -> None:
    records, buckets, bits, shares = inputs(rows, lines, queries, seed=rows)
    found = scanning.scan(records, buckets, bits, shares, COUNT, compiled=compiled)
    expected = np.zeros((queries, COUNT, lines, 8), dtype=np.uint64)
    picked = np.unpackbits(shares, axis=1, bitorder="little")
    for query in range(queries):
        for table in range(TABLES):
            chosen = np.flatnonzero(picked[query, bits[:, table]])
            np.bitwise_xor.at(expected[query], buckets[chosen, table], records[chosen])
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("rows", [1, 2, 7, 64])
@pytest.mark.parametrize("lines", [1, scanning.NARROW, scanning.NARROW + 1])
def test_layouts_of_one_bucket_are_scanned_to_the_same_bytes(rows: int, lines: int) -> None:
    records, buckets, bits, shares = inputs(rows, lines, 2, seed=rows)
    buckets[:] = np.arange(TABLES, dtype=np.uint16)
    compiled, plain = (
        scanning.scan(records, buckets, bits, shares, TABLES, compiled=compiled) for compiled in (True, False)
    )
    assert np.array_equal(compiled, plain)


def test_more_rows_than_masks_are_stored_for_are_scanned_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    records, buckets, bits, shares = inputs(1000, 2, 2)
    whole = scanning.scan(records, buckets, bits, shares, COUNT, compiled=False)
    monkeypatch.setattr(scanning, "MASKS", 100)
    for compiled in (True, False):
        assert np.array_equal(scanning.scan(records, buckets, bits, shares, COUNT, compiled=compiled), whole)


def test_all_shares_leave_one_trace() -> None:
    records, buckets, bits, shares = inputs(ROWS, 2, 2)
    traces = []
    for share in (shares, np.zeros_like(shares), np.full_like(shares, 255)):
        with tracing(scanning) as notes:
            scanning.scan(traced(records), buckets, bits, traced(share), COUNT, compiled=False)
        traces.append(list(notes))
    assert len(traces[0]) > 30
    assert traces[0] == traces[1] == traces[2]


def test_a_scan_that_skips_rows_leaves_a_trace_of_its_share() -> None:
    records, _, bits, shares = inputs(ROWS, 2, 1)
    traces = []
    for share in (shares, ~shares):
        with tracing(scanning) as notes:
            picked = np.unpackbits(share[0], bitorder="little")[bits[:, 0]]
            _ = traced(records)[np.flatnonzero(picked)]
        traces.append(list(notes))
    assert traces[0] != traces[1]


# Machine code


def code(function: Any, *arguments: np.ndarray) -> str:
    """What LLVM made of a Python function for these arguments, after all its passes."""
    numba = pytest.importorskip("numba")
    compiled = numba.njit(tuple(map(numba.typeof, arguments)))(function)
    (text,) = compiled.inspect_llvm().values()
    functions = re.split(r"(?m)^(?=define )", text)
    return next(part for part in functions if "%arg." in part.splitlines()[0])


def uses_of(text: str, argument: str) -> tuple[int, list[str]]:
    """How many values come from what ``argument`` points to, and where one decides on a branch or an address."""
    lines = [line.strip() for line in text.splitlines()]
    pointers = {name for name in re.findall(r"%[\w.$\"]+", lines[0]) if name.startswith(f"%arg.{argument}.")}
    assert pointers, lines[0]
    values: set[str] = set()
    for _ in range(len(lines)):
        before = len(pointers) + len(values)
        for line in lines[1:]:
            target, _, operation = line.partition(" = ")
            names = set(re.findall(r"%[\w.$\"]+", operation))
            loads = operation.startswith("load ") or "@llvm.masked.gather" in operation
            if (loads and names & pointers) or names & values:
                values.add(target)
            elif names & pointers and not operation.startswith("icmp"):
                pointers.add(target)
        if len(pointers) + len(values) == before:
            break
    deciding = []
    for line in lines[1:]:
        _, _, operation = line.partition(" = ")
        names = set(re.findall(r"%[\w.$\"]+", operation or line))
        addresses = re.match(r"(br|switch|select|icmp|getelementptr|call)\b", operation or line)
        kept = re.match(r"(load|store)\b.* ptr (%[\w.$\"]+)", operation or line)
        if (addresses and names & values) or (kept and kept[2] in values):
            deciding.append(line)
    return len(values), deciding


def branching(records: Any, buckets: Any, stored: Any, found: Any) -> None:
    for row in range(records.shape[0]):
        for query in range(found.shape[0]):
            for table in range(buckets.shape[1]):
                if stored[query, row, table] != 0:
                    for line in range(records.shape[1]):
                        for word in range(8):
                            found[query, buckets[row, table], line, word] ^= records[row, line, word]


def made_and_used(shares: Any, bits: Any, records: Any, found: Any) -> None:
    """Masks that the compiler sees being made: it may unswitch the loop."""
    for row in range(records.shape[0]):
        mask = np.uint64(0) - np.uint64((shares[bits[row]] & np.uint8(1)) != 0)
        for word in range(records.shape[1]):
            found[word] ^= records[row, word] & mask


def fold_arguments() -> tuple[np.ndarray, ...]:
    records, buckets, _, _ = inputs(ROWS, 2, 1)
    return records, buckets, np.zeros((1, ROWS, TABLES), dtype=np.uint64), np.zeros((1, COUNT, 2, 8), dtype=np.uint64)


@pytest.mark.parametrize("name", ["fold", "fold_pairs"])
def test_no_mask_and_no_row_decides_on_a_branch_or_an_address_of_the_machine_code(name: str) -> None:
    kernels = pytest.importorskip("odp.crypto.pir._kernels")
    text = code(getattr(kernels, name).py_func, *fold_arguments())
    for argument in ("stored", "records"):
        values, deciding = uses_of(text, argument)
        assert values > 4
        assert deciding == []


def test_no_bit_of_a_share_decides_on_a_branch_or_an_address_of_the_machine_code() -> None:
    kernels = pytest.importorskip("odp.crypto.pir._kernels")
    _, _, bits, shares = inputs(ROWS, 2, 1)
    text = code(kernels.masks.py_func, shares.view(np.uint64), bits, np.zeros((1, ROWS, TABLES), dtype=np.uint64))
    values, deciding = uses_of(text, "shares")
    assert values > 2
    assert deciding == []


def test_the_check_sees_a_branch_on_a_mask() -> None:
    _, deciding = uses_of(code(branching, *fold_arguments()), "stored")
    assert any(line.startswith(("br", "%")) and ("icmp" in line or "br " in line) for line in deciding)


def test_the_check_sees_an_address_that_follows_from_a_value() -> None:
    records, _, bits, shares = inputs(ROWS, 1, 1)
    text = code(made_and_used, shares[0], bits[:, 0].copy(), records[:, 0], np.zeros(8, dtype=np.uint64))
    _, deciding = uses_of(text, "bits")
    assert any("getelementptr" in line for line in deciding)
