from __future__ import annotations

import dataclasses
import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_runtime.inference import offline
from device_runtime.inference.offline import newest_model
from device_runtime.inference.recommend import recommend
from device_runtime.network.addresses import PinnedAddresses
from device_runtime.network.services import Services
from device_runtime.rows import table_cache
from device_runtime.rows.table_cache import TableCache
from device_runtime.tasks.charters import CharterMemory
from odp.errors import CertificateError, ServiceUnavailable, StaleModel
from odp.transport.tls import TlsIdentity

NOBODY = "127.0.0.1:1"


def ask(world: Any, services: Services, folder: Path) -> Any:
    return newest_model(
        services, "people", cache=TableCache(folder / "tables"), folder=folder / "models", charters=CharterMemory()
    )


@pytest.fixture
def gone(world: Any, identity: TlsIdentity) -> Any:
    services = Services(NOBODY, identity.ca_pem, pinned=PinnedAddresses())
    yield services
    services.close()


def test_without_a_network_a_device_recommends_from_the_last_complete_model_and_says_so(
    world: Any, gone: Services, tmp_path: Path
) -> None:
    world.fill([30])
    online = ask(world, world.services(), tmp_path)
    assert online.offline is None
    found = ask(world, gone, tmp_path)
    assert found.offline is not None
    assert "nobody answers" in found.offline
    assert "version 0 of the model" in found.offline
    with world.store(0) as store:
        first, second = (recommend(store, one.downloaded, k=10) for one in (online, found))
    np.testing.assert_array_equal(first.items, second.items)
    np.testing.assert_array_equal(first.scores, second.scores)


def test_where_the_distributor_alone_is_gone_the_model_before_is_used(world: Any, tmp_path: Path) -> None:
    ask(world, world.services(), tmp_path)
    broadcast = world.model_server.broadcast(world.state)
    moved = tuple(dataclasses.replace(table, rows=table.rows + 1) for table in broadcast.tables)
    world.open_round(1, dataclasses.replace(broadcast, tables=moved))
    world.server.newest.distributor_address = NOBODY
    found = ask(world, world.services(addresses={"distributor": (NOBODY,)}), tmp_path)
    assert found.offline is not None
    assert found.downloaded.broadcast.version == 0


def test_a_device_that_never_had_a_model_reports_the_outage(world: Any, gone: Services, tmp_path: Path) -> None:
    with pytest.raises(ServiceUnavailable, match="nobody answers"):
        ask(world, gone, tmp_path)


@pytest.mark.parametrize("harm", ["offer", "table", "missing table", "another population"])
def test_a_kept_model_that_is_damaged_is_not_used(world: Any, gone: Services, tmp_path: Path, harm: str) -> None:
    ask(world, world.services(), tmp_path)
    offer = tmp_path / "models" / "people.offer"
    table = next((tmp_path / "tables").iterdir())
    if harm == "offer":
        data = offer.read_bytes()
        offer.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif harm == "another population":
        offer.rename(tmp_path / "models" / "others.offer")
    elif harm == "table":
        table.write_bytes(b"x" * table.stat().st_size)
    else:
        table.unlink()
    population = "others" if harm == "another population" else "people"
    with pytest.raises(ServiceUnavailable):
        newest_model(
            gone,
            population,
            cache=TableCache(tmp_path / "tables"),
            folder=tmp_path / "models",
            charters=CharterMemory(),
        )


def test_a_wrong_certificate_is_no_outage(world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(world, world.services(), tmp_path)

    def strange(*_: Any, **__: Any) -> Any:
        raise CertificateError("its certificate is for another name")

    services = world.services()
    monkeypatch.setattr(services, "newest_model", strange)
    with pytest.raises(CertificateError):
        ask(world, services, tmp_path)


@pytest.mark.parametrize("times", [1, 2])
def test_a_version_that_is_gone_is_asked_for_once_more(
    world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    real, left = offline.download_model, [times]

    def stale(*arguments: Any, **options: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise StaleModel("model 0123 is not held here; check in again for a newer version")
        return real(*arguments, **options)

    monkeypatch.setattr(offline, "download_model", stale)
    if times == 1:
        assert ask(world, world.services(), tmp_path).offline is None
    else:
        with pytest.raises(StaleModel, match="check in again"):
            ask(world, world.services(), tmp_path)
    assert len(world.server.requests) == 2


def test_a_device_without_space_uses_the_model_keeps_nothing_half_and_says_so(
    world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(table_cache, "write_atomically", full)
    cache = TableCache(tmp_path / "tables")
    found = newest_model(world.services(), "people", cache=cache, folder=tmp_path / "models", charters=CharterMemory())
    assert found.downloaded.broadcast.version == 0
    assert cache.failure is not None
    assert "No space left on device" in cache.failure
    assert list((tmp_path / "tables").iterdir()) == []
