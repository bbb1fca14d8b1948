"""The page on what runs inside an enclave lists the modules of this installation's images."""

from __future__ import annotations

import pytest

from tools import trusted_base


@pytest.mark.processes
def test_the_page_lists_what_is_in_the_images() -> None:
    text = trusted_base.PAGE.read_text(encoding="utf-8")
    assert text.partition(trusted_base.MARK)[2].strip() == trusted_base.lists().strip(), (
        "run `python tools/trusted_base.py`"
    )
