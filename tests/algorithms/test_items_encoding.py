"""How the item rows of DPAM are published: a term of the task, the same in the simulator and on the wire."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import odp
from odp.algorithms.dpam.server import DpamServer
from odp.algorithms.registry import algorithm_for
from odp.errors import ConfigurationError
from odp.protocol.wire.encoding import rounded
from odp.protocol.wire.tables import broadcast_from, manifest_for, table_bytes


def task(training: odp.DPAM | odp.ImplicitDPAM, items: int = 50) -> odp.Task:
    return odp.Task(
        name="films",
        model=odp.MatrixFactorization(items=items, rank=2),
        data=odp.ImplicitData() if isinstance(training, odp.ImplicitDPAM) else odp.RatingsData(low=1, high=5),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-6, max_items_per_user=10),
        training=training,
        cohort=odp.Cohort(minimum=2, goal=3),
    )


def with_popularity(server: DpamServer, popularity: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> DpamServer:
    unpacked = server._unpacked
    monkeypatch.setattr(server, "_unpacked", lambda state: dataclasses.replace(unpacked(state), popularity=popularity))
    return server


def test_float16_rows_travel_in_half_the_bytes_and_arrive_as_the_simulator_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    popularity = np.linspace(1.0, 999.9, 50)
    halves, whole = (
        with_popularity(
            DpamServer(task(odp.DPAM(steps=1, items_encoding=encoding)).definition()),  # type: ignore[arg-type]
            popularity,
            monkeypatch,
        )
        for encoding in ("float16", "float32")
    )
    broadcast, exact = halves.broadcast(halves.start()), whole.broadcast(whole.start())
    np.testing.assert_array_equal(broadcast.keyed.rows, rounded(exact.keyed.rows, "float16"))
    assert (broadcast.keyed.rows != exact.keyed.rows).any()
    contents = {table.name: table_bytes(table) for table in broadcast.tables}
    assert 2 * len(contents["items"]) == len(table_bytes(exact.keyed))
    assert contents["globals"] == table_bytes(exact.tables[1])
    received = broadcast_from(manifest_for(broadcast, bytes(32)), contents)
    np.testing.assert_array_equal(received.keyed.rows, broadcast.keyed.rows)


def test_counts_beyond_float16_are_cut_to_its_largest_number(monkeypatch: pytest.MonkeyPatch) -> None:
    server = DpamServer(task(odp.DPAM(steps=1, items_encoding="float16")).definition())
    with_popularity(server, np.linspace(1.0, 1e9, 50), monkeypatch)
    rows = server.broadcast(server.start()).keyed.rows
    assert np.isfinite(rows).all()
    assert (rows[1:, 0] == 65504.0).all()


def test_only_what_suits_the_rows_is_allowed() -> None:
    for encoding in ("int8", "float8"):
        with pytest.raises(ConfigurationError, match=f"items_encoding='{encoding}'"):
            odp.DPAM(items_encoding=encoding)  # type: ignore[arg-type]
    for training, number in ((odp.DPAM(), 2), (odp.DPAM(), 9), (odp.ImplicitDPAM(steps=1), 1)):
        definition = task(training).definition()
        definition.dpam.items_encoding = number  # type: ignore[assignment]
        with pytest.raises(ConfigurationError, match="encoding"):
            algorithm_for(definition).check()
