"""`odp population`: the owners of a population, and how they change it."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from odp.cli.console import print_result, print_text
from odp.cli.task import Json, Server, State, open_connection
from odp.errors import ConfigurationError

if TYPE_CHECKING:
    from odp.signed.charter import Charter
    from odp.v1 import population_pb2, server_pb2

app = typer.Typer(help="Show and change whose keys may spend a population's budget.", no_args_is_help=True)
owners_app = typer.Typer(help="Add and retire owners of a population.", no_args_is_help=True)
app.add_typer(owners_app, name="owners")

Name = Annotated[str, typer.Argument(help="The population.")]
KeyOf = Annotated[str, typer.Argument(help="Public key of a server (`odp server key`): 64 hex digits.")]
File = Annotated[Path, typer.Argument(help="File of the change.")]
Approvals = Annotated[
    int | None, typer.Option(help="Number of owners who have to approve later changes \\[default: as before].")
]
Output = Annotated[Path, typer.Option(help="File for the change while approvals are missing.")]


@app.command("show")
def show(name: Name, server: Server = "127.0.0.1:7200", state: State = Path("odp-state"), json: Json = False) -> None:
    """Print the owners of a population."""
    from odp.signed.charter import open_charter

    with open_connection(server, state) as connection:
        response = connection.population(name)
    charter = open_charter(response.charter) if response.HasField("charter") else None
    values = None if charter is None else _values(charter)
    print_result(
        {"population": name, "charter": values, "server_key": response.server_key.hex()},
        f"population {name!r} is not founded yet: the server founds it with its first task"
        if charter is None
        else _lines(charter, response.server_key),
        json=json,
    )


@app.command("found")
def found_population(
    name: Name,
    owner: Annotated[
        list[str], typer.Option(help="Public key of an owner \\[default: that of the server]; repeat for more.")
    ] = [],  # noqa: B006  # typer copies it
    approvals: Annotated[int, typer.Option(help="Number of owners who have to approve each later change.")] = 1,
    issuer_key: Annotated[
        str, typer.Option(help="Key of an issuer (`odp issuer key`); then only devices with its tokens may contribute.")
    ] = "",
    server: Server = "127.0.0.1:7200",
    state: State = Path("odp-state"),
    json: Json = False,
) -> None:
    """Found a population with several owners. With its first task, a server founds one that it owns alone."""
    from odp.signed.charter import found

    with open_connection(server, state) as connection:
        owners = [_key(text) for text in owner] or [connection.population(name).server_key]
        issuer = _key(issuer_key) if issuer_key else b""
        answer = connection.change_population(found(name, owners=owners, approvals=approvals, issuer_key=issuer))
    _print_change(answer, Path("charter.json"), json=json)


@owners_app.command("add")
def add_owner(
    name: Name,
    key: KeyOf,
    approvals: Approvals = None,
    output: Output = Path("charter.json"),
    server: Server = "127.0.0.1:7200",
    state: State = Path("odp-state"),
    json: Json = False,
) -> None:
    """Add an owner, whose tasks may use the population from then on."""
    _change(name, add=_key(key), approvals=approvals, output=output, server=server, state=state, json=json)


@owners_app.command("retire")
def retire_owner(
    name: Name,
    key: KeyOf,
    approvals: Approvals = None,
    output: Output = Path("charter.json"),
    server: Server = "127.0.0.1:7200",
    state: State = Path("odp-state"),
    json: Json = False,
) -> None:
    """Retire an owner: its tasks end, and the contributions to their open rounds are erased."""
    _change(name, retire=_key(key), approvals=approvals, output=output, server=server, state=state, json=json)


@app.command("issuer")
def name_issuer(
    name: Name,
    key: Annotated[str, typer.Argument(help="Key of an issuer (`odp issuer key`), or `none` to admit any device.")],
    output: Output = Path("charter.json"),
    server: Server = "127.0.0.1:7200",
    state: State = Path("odp-state"),
    json: Json = False,
) -> None:
    """Name the issuer whose tokens devices need to contribute. It takes effect in the next round that opens."""
    issuer_key = b"" if key == "none" else _key(key)
    _change(name, issuer_key=issuer_key, approvals=None, output=output, server=server, state=state, json=json)


@app.command("approve")
def approve_change(
    file: File, server: Server = "127.0.0.1:7200", state: State = Path("odp-state"), json: Json = False
) -> None:
    """Approve a change that another owner wrote. The last missing approval puts it into force."""
    from odp.signed.charter import open_charter

    signed = _read(file)
    if not json:
        print_text(_lines(open_charter(signed), b""))
    with open_connection(server, state) as connection:
        answer = connection.change_population(signed)
    _print_change(answer, file, json=json)


def _change(
    name: str,
    *,
    approvals: int | None,
    output: Path,
    server: str,
    state: Path,
    json: bool,
    add: bytes | None = None,
    retire: bytes | None = None,
    issuer_key: bytes | None = None,
) -> None:
    from odp.signed.charter import open_charter, succeed

    with open_connection(server, state) as connection:
        response = connection.population(name)
        if not response.HasField("charter"):
            raise ConfigurationError(f"population {name!r} is not founded yet; `odp population found` does that")
        before = open_charter(response.charter)
        owners = set(before.owners)
        if (add is not None and add in owners) or (retire is not None and retire not in owners):
            raise ConfigurationError(
                f"population {name!r} has these owners: {', '.join(key.hex()[:16] + '..' for key in before.owners)}"
            )
        owners = (owners | ({add} if add is not None else set())) - {retire or b""}
        # Fewer owners cannot give as many approvals.
        wanted = min(before.approvals, len(owners)) if approvals is None else approvals
        answer = connection.change_population(succeed(before, owners=owners, approvals=wanted, issuer_key=issuer_key))
    _print_change(answer, output, json=json)


def _print_change(answer: server_pb2.ChangePopulationResponse, output: Path, *, json: bool) -> None:
    from odp.signed.charter import open_charter

    charter = open_charter(answer.charter)
    if answer.missing:
        _write(output, answer.charter)
    print_result(
        {"charter": _values(charter), "in_force": not answer.missing, "missing": answer.missing},
        f"{answer.missing} more approval{'s' if answer.missing > 1 else ''} needed: give {output} to another "
        f"owner, who runs `odp population approve {output}`"
        if answer.missing
        else f"in force\n{_lines(charter, b'')}",
        json=json,
    )


def _lines(charter: Charter, server_key: bytes) -> str:
    mine = {server_key: "  (this server)"}
    return "\n".join(
        [
            f"population {charter.population}, charter {charter.sequence} ({charter.sha256.hex()})",
            f"founded by charter {charter.founding_sha256.hex()}",
            *(f"owner {key.hex()}{mine.get(key, '')}" for key in charter.owners),
            f"a change needs the approval of {charter.approvals} of {len(charter.owners)}",
            f"devices contribute with tokens of issuer {charter.issuer_key.hex()}"
            if charter.issuer_key
            else "anybody may contribute, any number of times (no issuer of tokens is named)",
        ]
    )


def _values(charter: Charter) -> dict[str, object]:
    return {
        "population": charter.population,
        "sequence": charter.sequence,
        "sha256": charter.sha256.hex(),
        "founding_sha256": charter.founding_sha256.hex(),
        "owners": [key.hex() for key in charter.owners],
        "approvals": charter.approvals,
        "issuer_key": charter.issuer_key.hex(),
        "approved_by": [signature.key.hex() for signature in charter.signed.signatures],
    }


def _key(text: str) -> bytes:
    from odp.crypto.public_keys import require_ed25519

    try:
        key = bytes.fromhex(text)
    except ValueError:
        raise ConfigurationError(
            f"Expected key={text[:80]!r} to be 64 hex digits, as `odp server key` prints"
        ) from None
    require_ed25519(key, name="key")
    return key


def _write(path: Path, signed: population_pb2.SignedCharter) -> None:
    from odp._system.files.state_folder import state_errors, write_atomically

    content = {
        "charter": signed.charter.hex(),
        "signatures": [
            {"key": signature.key.hex(), "signature": signature.signature.hex()} for signature in signed.signatures
        ],
    }
    with state_errors(path):
        write_atomically(path, (json_module.dumps(content, indent=1) + "\n").encode(), mode=0o644)


def _read(path: Path) -> population_pb2.SignedCharter:
    from odp.v1 import population_pb2

    try:
        content = json_module.loads(path.read_bytes())
        return population_pb2.SignedCharter(
            charter=bytes.fromhex(content["charter"]),
            signatures=[
                population_pb2.CharterSignature(
                    key=bytes.fromhex(signature["key"]), signature=bytes.fromhex(signature["signature"])
                )
                for signature in content["signatures"]
            ],
        )
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}; check the path") from error
    except (ValueError, TypeError, KeyError):
        raise ConfigurationError(f"{path} is no change of a population, as `odp population owners` writes it") from None
