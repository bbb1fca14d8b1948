"""Other users of the machine and what a program keeps: nothing that decides what leaves a device can be replaced."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.world import World, small_task

import odp
from device_runtime.person.limits import Limits
from device_runtime.round.gate import FILE as LIMITS
from device_runtime.sdk import Environment
from odp.errors import StateError
from odp.operations.local.processes import Child

NO_KEYRING = Environment(keyring=False)
#: By purpose: others check or reach a service by them.
PUBLIC = {"ca.pem", "reference_values.json", "endorsements.json", "vendor.pem"}


@pytest.fixture(autouse=True)
def open_to_all(tmp_path: Path) -> Iterator[None]:
    """A umask that takes nothing away, in a folder that everybody may write to."""
    tmp_path.chmod(0o777)
    before = os.umask(0)
    yield
    os.umask(before)


def loose(root: Path) -> dict[str, str]:
    """What others may use below a folder, and how; the folder itself too."""
    found = {}
    for path in [root, *root.rglob("*")]:
        mode = stat.S_IMODE(path.lstat().st_mode)
        wanted = 0o700 if path.is_dir() else 0o644 if path.name in PUBLIC else 0o600
        if mode & ~wanted or path.is_symlink():
            found[str(path.relative_to(root))] = oct(mode)
    return found


@pytest.mark.slow
def test_nothing_that_a_program_keeps_is_open_to_other_users(tmp_path: Path) -> None:
    ratings = odp.data.synthetic_movielens(n_users=20, n_items=12, ratings_per_user=5, seed=5)
    task = small_task(ratings, places=5, training=odp.DPAM(steps=0), broadcast=odp.Broadcast(method="all"))
    root = tmp_path / "world"
    with contextlib.ExitStack() as stack:
        world = World(root, with_helper=True).start(stack)
        handle = world.connection.submit(task)
        app = stack.enter_context(odp.Device(tmp_path / "app", limits=Limits(min_cohort=20), environment=NO_KEYRING))
        app.record("seen", {"film": 3})
        shown = app.show()
        child = Child("aggregator", ["aggregator", "--help"], state=root / "child", log=root / "logs" / "child.log")
        child.process.wait(60.0)
        world.finish(handle, world.devices(ratings))
        # While everything is open: databases have journals then.
        assert len(list(root.rglob("*"))) > 50
        assert loose(root) == {}
        assert loose(tmp_path / "app") == {}
        assert shown
    assert loose(root) == {}
    assert loose(tmp_path / "app") == {}


def test_limits_that_another_user_could_have_replaced_are_not_used(tmp_path: Path) -> None:
    app = tmp_path / "app"
    odp.Device(app, limits=Limits(max_total_epsilon=1.0), environment=NO_KEYRING).close()
    planted = tmp_path / "planted.json"
    planted.write_bytes((app / LIMITS).read_bytes().replace(b'"max_total_epsilon": 1.0', b'"max_total_epsilon": 1e9'))
    (app / LIMITS).unlink()
    (app / LIMITS).symlink_to(planted)
    with pytest.raises(StateError):
        odp.Device(app, environment=NO_KEYRING)
    moved = tmp_path / "moved"
    app.rename(moved)
    app.symlink_to(moved)
    with pytest.raises(StateError, match="is a link"):
        odp.Device(app, environment=NO_KEYRING)
