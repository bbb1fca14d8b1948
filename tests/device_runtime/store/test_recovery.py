from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from device_runtime_ledger import participation, prepare
from stores import pages_of

from device_runtime.person.limits import Limits
from device_runtime.store import recovery
from device_runtime.store.recovery import repair, set_aside_path
from device_runtime.store.store import Store, store_path
from odp.errors import StateError, StoreDamaged


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with a ledger, decisions, many ratings and some events."""
    path = store_path(tmp_path, 7)
    with Store.open_or_create(path, durable=False) as store:
        store.fill(np.arange(500), np.full(500, 3.0), filled_from=b"x")
        prepare(store, participation())
        store.set_limits(Limits(max_epsilon=3.0))
        for time in range(20):
            store.data("music").add_event("play", {"track": time}, time=float(time))
    return path


def damage(path: Path, page: int) -> None:
    content = bytearray(path.read_bytes())
    content[1024 * (page - 1) + 100] ^= 1
    path.write_bytes(content)


def test_a_whole_store_is_left_as_it_is(path: Path) -> None:
    before = path.read_bytes()
    assert repair(path).aside is None
    assert path.read_bytes() == before


def test_a_store_with_damaged_data_is_rebuilt_with_its_whole_ledger_and_what_can_be_read(path: Path) -> None:
    with Store.open(path) as store:
        identity, ledger, charged = store.identity(), store.ledger(), store.charged()
    (leaf, *_) = pages_of(path, "ratings")[2:]
    damage(path, leaf)
    with pytest.raises(StoreDamaged, match="odp device repair"), Store.open(path) as store:
        store.ratings()
    damaged = path.read_bytes()
    done = repair(path)
    assert done.aside == set_aside_path(path)
    assert done.aside.read_bytes() == damaged
    assert done.incomplete == ("ratings",)
    with Store.open(path) as store:
        assert (store.identity(), store.ledger(), store.charged()) == (identity, ledger, charged)
        assert store.person().limits == Limits(max_epsilon=3.0)
        assert 300 < store.ratings().items.size < 500
        assert set(store.ratings().values.tolist()) == {3.0}
        assert len(store.data("music").events()) == 20
    assert repair(path).aside is None


@pytest.mark.parametrize("table", ["identity", "participations", "tasks", "person"])
def test_a_store_that_lost_its_ledger_is_set_aside_and_no_empty_one_takes_its_place(path: Path, table: str) -> None:
    damage(path, pages_of(path, table)[0])
    damaged = path.read_bytes()
    with pytest.raises(StoreDamaged, match="set aside as"):
        repair(path)
    assert set_aside_path(path).read_bytes() == damaged
    for again in (Store.open, Store.open_or_create, repair):
        with pytest.raises(StoreDamaged, match=r"7\.sqlite\.damaged"):
            again(path)  # type: ignore[operator]
    assert not path.exists()
    set_aside_path(path).unlink()  # what the message says
    with Store.open_or_create(path) as store:
        assert store.ledger() == ()


def test_a_truncated_store_is_set_aside(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: 5 * 1024])
    with pytest.raises(StoreDamaged, match="set aside as"):
        repair(path)


def test_a_file_that_this_hosts_key_did_not_make_is_not_touched(path: Path) -> None:
    content = os.urandom(8192)
    path.write_bytes(content)
    with pytest.raises(StateError, match="encrypted with another key"):
        repair(path)
    assert path.read_bytes() == content


def _die_at(path: str, step: int) -> None:
    left = [step]

    def counted(original):  # type: ignore[no-untyped-def]
        def stepped(*given, **named):  # type: ignore[no-untyped-def]
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return original(*given, **named)

        return stepped

    recovery._write = counted(recovery._write)  # type: ignore[assignment]
    os.link = counted(os.link)
    Path.replace = counted(Path.replace)  # type: ignore[method-assign]
    repair(Path(path))
    os._exit(0)


@pytest.mark.parametrize("step", range(4))
def test_a_repair_that_is_killed_is_done_again(path: Path, step: int) -> None:
    with Store.open(path) as store:
        ledger = store.ledger()
    damage(path, pages_of(path, "ratings")[2])
    process = multiprocessing.get_context("fork").Process(target=_die_at, args=(str(path), step))
    process.start()
    process.join()
    assert process.exitcode == (-signal.SIGKILL if step < 3 else 0)
    repair(path)
    assert set_aside_path(path).exists()
    with Store.open(path) as store:
        assert store.ledger() == ledger
        assert store.ratings().items.size > 300
    assert len(list(path.parent.iterdir())) == 2


def test_the_charged_contribution_of_a_rebuilt_store_still_counts_against_the_limits(path: Path) -> None:
    damage(path, pages_of(path, "ratings")[2])
    repair(path)
    with Store.open(path) as store:
        assert len(store.charged()) == 1
        with pytest.raises(StateError, match="already has a contribution"):
            prepare(store, dataclasses.replace(participation(), time=9.0))
