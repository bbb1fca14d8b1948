"""What a shell offers for `--data`: names of data sets, and files and folders."""

from __future__ import annotations

from pathlib import Path


def data_names(incomplete: str) -> list[str]:
    """Names of data sets and paths that begin with ``incomplete``; a folder ends with a slash, so that it goes on."""
    from odp.datasets import DATASETS

    named = [name for name in ("synthetic", *DATASETS) if name.startswith(incomplete)]
    return named + _paths(incomplete)


def _paths(incomplete: str) -> list[str]:
    before, slash, begun = incomplete.rpartition("/")
    folder = Path(before + slash) if before or slash else Path()
    try:
        inside = sorted(folder.iterdir())
    except OSError:
        return []
    shown = [path for path in inside if path.name.startswith(begun) and (begun or not path.name.startswith("."))]
    return [f"{before}{slash}{path.name}{'/' if path.is_dir() else ''}" for path in shown]
