"""Writes the modules of the enclaves' images into docs/trusted-base.md: ``python tools/trusted_base.py [--check]``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from odp.trust.enclave.image.parts import Image
from odp.trust.enclave.measurement import AGGREGATOR_ENTRY, DISTRIBUTOR_ENTRY, PLATFORM_ENTRY, measure

PAGE = Path(__file__).resolve().parent.parent / "docs" / "trusted-base.md"
#: What follows it is written by this program.
MARK = "<!-- written by tools/trusted_base.py -->\n"
STANDARD = sys.stdlib_module_names | {"_compat_pickle"}
TITLES = {
    AGGREGATOR_ENTRY: "The aggregator's enclave",
    DISTRIBUTOR_ENTRY: "The distributor's enclave",
    PLATFORM_ENTRY: "The emulated platform below each enclave",
}


def lists() -> str:
    """The part of the page that is written here."""
    return "\n".join(line for entry, title in TITLES.items() for line in _section(title, measure(entry)))


def _section(title: str, image: Image) -> Iterator[str]:
    modules = image.of_kind("module", "package")
    ours = sorted(part.name for part in modules if part.component == "code")
    others = sorted({part.name.partition(".")[0] for part in modules if part.component == "base"} - STANDARD)
    yield f"\n### {title}\n"
    yield f"{len(ours)} modules of ours; Python's standard library; and of other libraries {', '.join(others)}.\n"
    for package, group in groupby(ours, key=lambda name: ".".join(name.split(".")[:2])):
        inside = [name.removeprefix(package).lstrip(".") for name in group]
        yield f"- `{package}`" + (": " + ", ".join(filter(None, inside)) if any(inside) else "")
    yield ""


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    page = text.partition(MARK)[0] + MARK + lists() + "\n"
    if "--check" in sys.argv:
        sys.exit(0 if page == text else f"{PAGE.name} is out of date: run `python tools/trusted_base.py`")
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
