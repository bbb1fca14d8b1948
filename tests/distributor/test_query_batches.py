from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from distributor import shares
from distributor.shares import MOST_BATCHED, QueryBatches
from odp.crypto.pir import two_server
from odp.crypto.pir.two_server import Database, RequestError

SECONDS = 60.0


def database(row_bytes: int) -> Database:
    rows = np.random.default_rng(1).integers(0, 256, (60, row_bytes), dtype=np.uint8)
    return Database.of(rows, keys=4, seed=bytes(32), table_sha256=bytes(32))


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Queries of each pass; the first pass waits until the test lets it go on."""
    found: list[int] = []
    real = two_server.answer_many

    def counted(*given: object, **more: object) -> list[bytes]:
        found.append(len(given[1]))  # type: ignore[arg-type]
        return real(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(shares.two_server, "answer_many", counted)
    return found


def ask_at_once(answers: QueryBatches, data: Database, requests: list[bytes]) -> list[bytes | Exception]:
    """All requests wait before the first pass begins."""
    held = answers._passes
    held.acquire()

    def ask(request: bytes) -> bytes | Exception:
        try:
            return answers.answer(data, request, None)
        except RequestError as error:
            return error

    with ThreadPoolExecutor(len(requests)) as pool:
        futures = [pool.submit(ask, request) for request in requests]
        pause = threading.Event()
        for _ in range(2000):
            if len(answers._waiting.get(data.shape.digest, ())) == len(requests):
                break
            pause.wait(0.01)
        held.release()
        return [future.result(SECONDS) for future in futures]


def test_queries_that_wait_share_passes_and_get_the_same_replies(passes: list[int]) -> None:
    data = database(2000)
    requests = [two_server.query([number], data.shape)[0] for number in range(MOST_BATCHED + 3)]
    alone = [two_server.answer(data, request, pad_seed=None) for request in requests]
    passes.clear()
    assert ask_at_once(QueryBatches(passes=1), data, requests) == alone
    assert sorted(passes) == [3, MOST_BATCHED]


def test_a_malformed_query_is_refused_alone(passes: list[int]) -> None:
    data = database(2000)
    good = two_server.query([7], data.shape)[0]
    found = ask_at_once(QueryBatches(passes=1), data, [good, good[:-1], good])
    assert isinstance(found[1], RequestError)
    assert found[0] == found[2] == two_server.answer(data, good, pad_seed=None)


def test_narrow_rows_are_not_gathered(passes: list[int]) -> None:
    data = database(16)
    request = two_server.query([7], data.shape)[0]
    QueryBatches(passes=1).answer(data, request, None)
    assert passes == [1]
    answers = QueryBatches(passes=1)
    with answers._passes:
        assert answers.answer(data, request, None) == two_server.answer(data, request, pad_seed=None)


def test_whoever_waits_for_a_pass_that_was_interrupted_hears_it(monkeypatch: pytest.MonkeyPatch) -> None:
    data = database(2000)

    def broken(*_: object) -> list[bytes]:
        raise MemoryError

    monkeypatch.setattr(shares.two_server, "answer_many", broken)
    request = two_server.query([7], data.shape)[0]
    with pytest.raises(MemoryError):
        QueryBatches(passes=1).answer(data, request, None)
