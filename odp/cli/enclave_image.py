"""`odp enclave build` and `odp enclave show`: the image that an enclave runs, for those who have to trust it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from odp.cli.console import print_json, print_text
from odp.cli.outputs import output_folder, writing

if TYPE_CHECKING:
    from odp.trust.enclave.image.listing import Difference, Listing

Images = Annotated[
    Path | None,
    typer.Option(help="Folder of `odp enclave build`, to run those images \\[default: this installation's]."),
]
_MOST_SHOWN = 12


def build(
    output: Annotated[Path, typer.Option(callback=output_folder, help="Folder to write the images to.")] = Path(
        "enclave-images"
    ),
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Build the images of aggregator, distributor and platform, to ship them: the same bytes wherever they are built.

    Two machines build the same bytes if they have the same Python, system libraries and libraries of Python.
    """
    from odp.trust.enclave.image.built import image_of, packages_of, write
    from odp.trust.enclave.measurement import FILES

    digests = {}
    with writing(output):
        output.mkdir(parents=True, exist_ok=True)
        for entry, name in FILES.items():
            write(entry, packages_of(entry), output / name)
            digests[name] = image_of(output / name).digest
            if not json_output:
                print_text(f"{output / name}  {digests[name]}")
    if json_output:
        print_json(digests)


def show(
    image: Annotated[Path, typer.Argument(help="File of an image.")],
    other: Annotated[Path | None, typer.Argument(help="A newer image, to see what changed.")] = None,
    every: Annotated[bool, typer.Option("--all", help="List every module and library.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what an image is made of: its modules with their lines, its libraries, and what changed to another one."""
    from odp._system.posix import require_posix

    require_posix("odp enclave show")
    from odp.trust.enclave.image.listing import difference

    first = _listed(image)
    changes = None if other is None else difference(first, _listed(other))
    if json_output:
        print_json(_as_json(first, changes))
        return
    if changes is not None:
        _print_changes(changes)
        return
    print_text(f"{first.digest}  starts with {first.entry}")
    for name, digest in first.components.items():
        print_text(f"  {name:<6} {digest}")
    for label, modules in (("its own code", first.code), ("libraries in Python", first.base)):
        print_text(f"{label}: {len(modules)} modules, {sum(modules.values()):,} lines")
        _print_largest(modules, every, "lines")
    print_text(f"machine code: {len(first.native)} files, {sum(first.native.values()) / 1e6:,.1f} MB")
    _print_largest(first.native, every, "bytes")
    print_text("versions: " + ", ".join(first.versions))


def _listed(path: Path) -> Listing:
    from odp.trust.enclave.image.listing import listing
    from odp.trust.enclave.image.parts import open_image

    descriptor, file = open_image(path)
    try:
        return listing(file)
    finally:
        os.close(descriptor)


def _print_largest(sizes: dict[str, int], every: bool, unit: str) -> None:
    ordered = sorted(sizes.items(), key=lambda entry: (-entry[1], entry[0]))
    shown = ordered if every else ordered[:_MOST_SHOWN]
    for name, size in shown:
        print_text(f"  {size:>12,} {name}")
    if len(shown) < len(ordered):
        rest = sum(size for _, size in ordered[len(shown) :])
        print_text(f"  {rest:>12,} {unit} in {len(ordered) - len(shown)} more (--all lists them)")


def _print_changes(changes: Difference) -> None:
    for label, parts in (("+", changes.added), ("-", changes.removed), ("~", changes.changed)):
        for part in parts:
            print_text(f"{label} {part}")
    if not (changes.added or changes.removed or changes.changed):
        print_text("the same image")


def _as_json(shown: Listing, changes: Difference | None) -> dict[str, object]:
    content: dict[str, object] = {
        "entry": shown.entry,
        "digest": shown.digest,
        "components": shown.components,
        "versions": list(shown.versions),
        "code": shown.code,
        "base": shown.base,
        "native": shown.native,
    }
    if changes is not None:
        content["changes"] = {"added": changes.added, "removed": changes.removed, "changed": changes.changed}
    return content
