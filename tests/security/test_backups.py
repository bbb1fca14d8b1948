"""A disk that is lost, and backups of the aggregator that would give its budget back (R277)."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from aggregator_programs import SECONDS, Programs
from hand_overs import OLD, upgradable

from odp._system.files.backup import back_up, restore
from odp.errors import StateError
from odp.v1 import aggregator_pb2


def test_r277_after_a_lost_disk_the_newest_backup_goes_on_and_no_other_state_does(
    tmp_path: Path, make_world: Callable[..., Any]
) -> None:
    world, endorsers = upgradable(make_world)
    state = tmp_path / "aggregator"
    charter = aggregator_pb2.SetCharterRequest(charter=world.charter)
    with contextlib.ExitStack() as stack:
        programs = Programs(tmp_path, world, endorsers, stack)
        running = programs.start("aggregator", OLD)
        running.orders.SetCharter(charter, timeout=SECONDS)
        spent = []
        for round in range(2):
            programs.open(running, round)
            programs.fill(running, round, range(4))
            world.learn(programs.close(running, round).SerializeToString())
            spent.append(programs.spent(running))
            with pytest.raises(StateError, match="in use"):
                back_up(state, tmp_path / f"{round}.tar")
            running.stop()
            back_up(state, tmp_path / f"{round}.tar")
            running = programs.start("aggregator", OLD)
        running.stop()
        assert spent[1] > spent[0] > 0

        shutil.rmtree(state)
        empty = programs.start("aggregator", OLD)
        with pytest.raises(grpc.RpcError) as refused:
            empty.orders.SetCharter(charter, timeout=SECONDS)
        assert refused.value.code() is grpc.StatusCode.INTERNAL
        assert "was rolled back" in programs.log.getvalue()
        empty.stop()

        shutil.rmtree(state)
        restore(tmp_path / "0.tar", state)
        with pytest.raises(StateError, match=r"was rolled back.*restore the newest state folder or backup"):
            programs.start("aggregator", OLD)

        shutil.rmtree(state)
        restore(tmp_path / "1.tar", state)
        running = programs.start("aggregator", OLD)
        assert programs.spent(running) == spent[1]
        programs.open(running, 2)
