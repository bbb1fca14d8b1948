"""What a reviewer is shown of an image: nothing of it runs, and hostile bytes end in one line."""

from __future__ import annotations

import marshal
import random
import subprocess
import sys
from pathlib import Path

import pytest
from trust.enclave.test_image_running import BLOBS, opened

from odp.errors import ConfigurationError
from odp.trust.enclave.image.building import compiled
from odp.trust.enclave.image.lines import line_counts
from odp.trust.enclave.image.listing import difference, listing
from odp.trust.enclave.image.parts import Blob

VERSIONS = Blob("base", "versions", "versions", b"Python 3.11.7\nnumpy 2.1.0\n")
SOURCE = b"import os\ndef f():\n    return [\n        x for x in range(9)\n    ]\n"


def blobs(**modules: bytes) -> list[Blob]:
    code = [Blob("code", "module", name, data) for name, data in modules.items()]
    return [*(blob for blob in BLOBS if blob.kind != "module"), VERSIONS, *code]


def test_a_listing_counts_lines_and_machine_code(tmp_path: Path) -> None:
    with opened(tmp_path / "image", *blobs(first=compiled(SOURCE, "first.py"), second=compiled(b"", "s.py"))) as file:
        shown = listing(file)
    assert shown.entry == "odp.probe"
    assert line_counts([compiled(SOURCE, "first.py"), compiled(b"", "s.py")]) == [4, 0]
    assert shown.native == {"ld.so": 6000, "zlib": 9000, "libc.so.6": 7000, "python": 7000}
    assert shown.versions == ("Python 3.11.7", "numpy 2.1.0")


def test_a_difference_names_what_was_added_removed_and_changed(tmp_path: Path) -> None:
    empty = compiled(b"", "s.py")
    with opened(tmp_path / "old", *blobs(first=compiled(SOURCE, "first.py"), gone=empty)) as file:
        old = listing(file)
    with opened(tmp_path / "new", *blobs(first=compiled(SOURCE + b"x = 1\n", "first.py"), new=empty)) as file:
        new = listing(file)
    changes = difference(old, new)
    assert (changes.added, changes.removed, changes.changed) == (("module new",), ("module gone",), ("module first",))


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
from odp.trust.enclave.image.building import compiled
from odp.trust.enclave.image.lines import line_counts
assert line_counts([compiled(b"x = 1", "x.py")]) == [1]
"""


def test_lines_are_counted_where_a_lower_limit_of_memory_holds_already() -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


HUGE_TUPLE = b"(" + (2**31 - 1).to_bytes(4, "little")
DEEP_LIST = b"[\x01\x00\x00\x00" * 5000 + b"N"


@pytest.mark.parametrize(
    "data", [b"", b"no code", marshal.dumps("no code", 2), HUGE_TUPLE, DEEP_LIST, compiled(SOURCE, "a.py")[:-1]]
)
def test_r441_a_module_that_is_no_code_is_refused_in_one_line(tmp_path: Path, data: bytes) -> None:
    refusal = "its modules are no code of Python 3"
    with (
        opened(tmp_path / "image", *blobs(first=data)) as file,
        pytest.raises(ConfigurationError, match=refusal) as caught,
    ):
        listing(file)
    assert "\n" not in str(caught.value)


def test_r441_changed_code_neither_ends_nor_stalls_who_looks_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odp.trust.enclave.image.lines._SECONDS", 2.0)
    drawing = random.Random(1)
    refused = 0
    for _ in range(12):
        changed = bytearray(compiled(SOURCE * 20, "first.py"))
        for _ in range(4):
            changed[drawing.randrange(len(changed))] = drawing.randrange(256)
        try:
            line_counts([bytes(changed)])
        except ConfigurationError:
            refused += 1
    assert refused > 0


def test_nothing_of_an_image_runs_while_it_is_looked_at(tmp_path: Path) -> None:
    written = tmp_path / "ran"
    with opened(tmp_path / "image", *blobs(first=compiled(f"open({str(written)!r}, 'w')\n".encode(), "a.py"))) as file:
        listing(file)
    assert not written.exists()
