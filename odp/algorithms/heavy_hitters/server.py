"""The server's half: which prefixes are followed up, and which words were found. All of it is post-processing.

The state is JSON: the round, the prefixes of that round's depth and the words so far, each with its noisy count.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np

from odp.algorithms.heavy_hitters.terms import COUNTS, END, PREFIXES, RELEASE, UNUSED, WORDS, Terms
from odp.algorithms.seam import NoisyTensors
from odp.errors import ConfigurationError, StateError
from odp.numerics.arrays import Float32Array, Float64Array
from odp.protocol.wire.model import ModelVersion, TableValues


@dataclass(frozen=True)
class SearchState:
    """What is known before ``round``: the prefixes to follow up, and the words with their noisy counts."""

    round: int
    prefixes: tuple[tuple[int, ...], ...]
    words: tuple[tuple[tuple[int, ...], float], ...]

    def after(self, terms: Terms, counts: Float64Array) -> SearchState:
        """What is known after a round released ``counts``, float64 [size]."""
        heavy_cells = np.flatnonzero(counts >= terms.threshold * terms.grid.noise_std)
        heavy_cells = heavy_cells[np.argsort(-counts[heavy_cells], kind="stable")]
        prefixes: list[tuple[int, ...]] = []
        words = list(self.words)
        for cell in heavy_cells.tolist():
            if (characters := self._characters(terms, cell)) is None:
                continue
            if END in characters or len(characters) == terms.words.length:
                words.append((characters, float(counts[cell])))
            elif len(prefixes) < terms.prefixes:
                prefixes.append(characters)
        words.sort(key=lambda word: -word[1])
        return replace(self, round=self.round + 1, prefixes=tuple(prefixes), words=tuple(words[: terms.most_words]))

    def _characters(self, terms: Terms, cell: int) -> tuple[int, ...] | None:
        """The characters that a cell of this round stands for; None where it is no beginning of a word."""
        base = terms.words.base
        if self.round:
            row, character = divmod(cell, base)
            return (*self.prefixes[row], character) if row < len(self.prefixes) else None
        if cell >= base**terms.first:
            return None
        digits = tuple(cell // base**place % base for place in reversed(range(terms.first)))
        end = digits.index(END) if END in digits else len(digits)
        return digits if end and not any(digits[end:]) else None


class WordsServer:
    """``odp.algorithms.seam.Server`` of one task."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self.rounds = terms.rounds

    def start(self) -> bytes:
        """No prefix, no word."""
        return _encode(SearchState(0, (), ()))

    def broadcast(self, state: bytes) -> ModelVersion:
        """The prefixes of the next round, and the words so far with their counts; unused places hold -1.

        Raises StateError for a state of another task.
        """
        terms, search = self._terms, self.read_state(state)
        width = terms.words.length
        prefixes = _table(list(search.prefixes), terms.prefixes, width)
        words = _table([row for row, _ in search.words], terms.most_words, width)
        counts = _table([(count,) for _, count in search.words], terms.most_words, 1)
        tables = {PREFIXES: prefixes, WORDS: words, COUNTS: counts}
        return ModelVersion(search.round, tuple(TableValues(name, rows, keyed=False) for name, rows in tables.items()))

    def step(self, state: bytes, release: NoisyTensors) -> bytes:
        """What is known after the round. Raises ConfigurationError where the release is of another one."""
        search = self.read_state(state)
        if release.round != search.round or search.round >= self.rounds:
            raise ConfigurationError(f"Expected round={release.round!r} to be {search.round}, and to be applied once")
        return _encode(search.after(self._terms, release.tensors[RELEASE]))

    def read_state(self, state: bytes) -> SearchState:
        """What a state holds. Raises StateError where it is none."""
        try:
            value = json.loads(state)
            return SearchState(
                int(value["round"]),
                tuple(tuple(map(int, row)) for row in value["prefixes"]),
                tuple((tuple(map(int, row)), float(count)) for row, count in value["words"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise StateError("Expected a state of a search for words; restore a backup") from error


def _encode(search: SearchState) -> bytes:
    value = {"round": search.round, "prefixes": search.prefixes, "words": search.words}
    return json.dumps(value, separators=(",", ":")).encode()


def _table(rows: list[tuple[int, ...]] | list[tuple[float]], size: int, width: int) -> Float32Array:
    table = np.full((size, width), UNUSED, dtype=np.float32)
    for place, row in enumerate(rows):
        table[place, : len(row)] = row
    return table
