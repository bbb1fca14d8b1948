"""How fast a server answers private queries, beside how fast this machine reads memory, and what they weigh.

Two-server retrieval scans records (rows with the hashes that prove them) in whole passes. A query of many keys is one
pass that folds every record into one bucket of each of four layouts; the yardstick of that batching is the time of as
many queries of one key. Work is counted in bytes of records, processor time on one thread;
memory is read as in ``scanning``, in turns with the answers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from benchmarks.harness import Figure, Limit
from benchmarks.scanning import MEMORY_BYTES, Shape, best
from odp.algorithms.dpam import parallel
from odp.crypto import pir
from odp.crypto.pir import dpf, scanning

_GIGA, _MILLI = 1e9, 1e3
_BATCH = 8
_PUBLIC = bytes(32)  # seed and table hash: no figure depends on them


def retrieval(rows: npt.NDArray[np.float32], shape: Shape, *, keys: int, repeats: int, full: bool) -> list[Figure]:
    """Figures for one key and for ``keys``; goals where ``full``.

    Raises:
        RuntimeError: recovered rows are not those of the table: no figure would mean anything.
    """
    many, one = (pir.Database.of(rows, keys=count, seed=_PUBLIC, table_sha256=_PUBLIC) for count in (keys, 1))
    _check(many, rows, keys)
    memory = np.ones(MEMORY_BYTES // 4, dtype=np.float32)
    request, _, _ = pir.query(range(min(keys, shape.rows)), many.shape)
    single, _, _ = pir.query([0], one.shape)
    works: list[Callable[[], object]] = [
        memory.max,
        lambda: np.dot(memory, memory),
        _scan(one, single, 1),
        _scan(one, single, _BATCH),
        _scan(many, request, 1),
        lambda: pir.answer(one, single, pad_seed=None),
        lambda: pir.answer(many, request, pad_seed=None),
        lambda: pir.answer_many(many, [(request, None)] * _BATCH),
    ]
    with parallel.one_blas_thread():
        found = best(works, repeats)
    scan, scans, folds, alone, batched, eight = found[2:]
    bandwidth = MEMORY_BYTES / min(found[:2])
    stored = one.records.nbytes
    reading = stored / bandwidth
    memory_limit = Limit("memory", bandwidth / _GIGA)
    whole = Limit("the whole table", shape.bytes)
    tables = many.shape.layout.tables
    return [
        Figure(f"{shape}: private scan for one key", stored / scan / _GIGA, "GB/s", None, memory_limit),
        Figure(f"{shape}: private scan for one key over memory", reading / scan, "", ">= 0.6" if full else None),
        Figure(f"{shape}: private scan for {_BATCH} queries over memory", _BATCH * reading / scans, ""),
        # A pass for many keys reads each record once and folds it into one bucket per layout.
        Figure(f"{shape}: private scan for {keys} keys, folding over memory", tables * reading / folds, ""),
        Figure(
            f"{shape}: {keys} private queries of one key over one of {keys}", keys * alone / batched, "",
            ">= 8" if full else None,
        ),
        Figure(
            f"{shape}: CPU of a private answer for {keys} keys", _MILLI * batched, "ms", None,
            Limit(f"{keys} answers for one", _MILLI * keys * alone),
        ),
        Figure(f"{shape}: CPU of a private answer for {keys} keys, {_BATCH} at once", _MILLI * eight / _BATCH, "ms"),
        Figure(f"{shape}: bytes up per device and server, private", len(request), "B"),
        Figure(f"{shape}: bytes down per device, private", pir.reply_bytes(many.shape), "B", None, whole),
        Figure(f"{shape}: bytes down per table version, private", len(many.shape.to_bytes()), "B", None, whole),
    ]  # fmt: skip


def _scan(database: pir.Database, request: bytes, queries: int) -> Callable[[], object]:
    """The scan alone: the shares of the point functions are there already."""
    layout = database.shape.layout
    size = layout.buckets * dpf.key_bytes(layout.places)
    keys = dpf.Keys.from_bytes(request[-size:], party=0, count=layout.buckets, size=layout.places)
    shares = np.repeat(dpf.evaluate(keys, layout.places).reshape(1, -1), queries, axis=0)
    return lambda: scanning.scan(
        database.records, database.buckets, database.bits, shares, layout.buckets, compiled=True
    )


def _check(database: pir.Database, rows: npt.NDArray[np.float32], keys: int) -> None:
    asked = np.random.default_rng(1).integers(0, len(rows), keys)
    leader, helper, secret = pir.query(asked, database.shape)
    own = pir.answer(database, leader, pad_seed=None)
    reply = pir.combine(own, pir.answer(database, helper, pad_seed=secret.pad_seed))
    if pir.recover(secret, reply).tobytes() != rows[asked].tobytes():
        raise RuntimeError("private retrieval gave other rows than those of the table")
