"""A tree of two leaves and a root beside one aggregator: processor time per contribution, with the round's close."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from benchmarks.aggregator import OneAggregator, processor_seconds, program, require_accepted, with_children
from benchmarks.contributors import Contributors
from benchmarks.harness import Figure, Limit, progress
from odp.crypto import SigningKey
from odp.operations.local.processes import Child

_LEAVES = 2


def run(quick: bool) -> list[Figure]:
    """Both in one run, on the same number of contributions; in the full run twice, of which the cheaper counts."""
    count = 3_000 if quick else 30_000
    with contextlib.ExitStack() as stack:
        devices = stack.enter_context(Contributors())
        one = min(_one(devices, count) for _ in range(1 if quick else 2))
        tree = min(_tree(devices, count) for _ in range(1 if quick else 2))
    alone = Limit("one aggregator", 1e6 * one)
    return [
        Figure("two leaves and a root: processor time per contribution", 1e6 * tree, "µs", None, alone),
        Figure("two leaves and a root over one aggregator", tree / one, "", None if quick else "<= 1.15"),
    ]


def _one(devices: Contributors, count: int) -> float:
    """Processor seconds per contribution of one aggregator."""
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="odp-benchmark-")))
        aggregator = OneAggregator(root, tokens=False)
        stack.callback(aggregator.stop)
        aggregator.connect()
        aggregator.open(0)
        devices.prepare(aggregator.target(0), count, seed=7)
        progress(f"submitting {count:,} contributions to one aggregator")
        before = _seconds([aggregator.child])
        require_accepted(devices.send(aggregator.child.address, aggregator.ca, 0, count))
        aggregator.close(0)
        return (_seconds([aggregator.child]) - before) / count


def _tree(devices: Contributors, count: int) -> float:
    """Processor seconds per contribution of a tree."""
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="odp-benchmark-")))
        developer = SigningKey.generate()
        leaves = [_leaf(root, number, developer) for number in range(_LEAVES)]
        for leaf in leaves:
            stack.callback(leaf.stop)
        for leaf in leaves:
            leaf.wait_serving(root / "ca" / "ca.pem")
        tree = OneAggregator(root, tokens=False, developer=developer, leaves=leaves)
        stack.callback(tree.stop)
        tree.connect()
        tree.open(0)
        programs = [tree.child, *leaves]
        used = 0.0
        for number, leaf in enumerate(leaves):
            devices.prepare(replace(tree.target(0), leaf=number, leaves=_LEAVES), count // _LEAVES, seed=number)
            progress(f"submitting {count // _LEAVES:,} contributions to leaf {number}")
            before = _seconds(programs)
            require_accepted(devices.send(leaf.address, tree.ca, 0, count // _LEAVES))
            used += _seconds(programs) - before
        before = _seconds(programs)
        tree.close(0)
        return (used + _seconds(programs) - before) / count


def _leaf(root: Path, number: int, developer: SigningKey) -> Child:
    name = f"leaf-{number}"
    command = [*program(root, developer.public.hex()), "--as-leaf-of", str(_LEAVES)]
    return Child(name, command, state=root / name, log=root / f"{name}.log")


def _seconds(programs: Sequence[Child]) -> float:
    found: dict[str, psutil.Process] = {}
    for child in programs:
        found |= {f"{child.name} {name}": process for name, process in with_children(child).items()}
    return sum(processor_seconds(found).values())
