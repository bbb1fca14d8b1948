"""The state folder of `odp up`: where a developer and a device on this machine find the services.

It holds the address that the server serves at, the authority of all certificates, the operator's token, and the
reference values, which say what a device accepts as an enclave and where.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from odp.errors import ConfigurationError

#: The folder that `odp up` makes where it is started.
NAME = "odp-state"
#: The environment variable that names another one.
VARIABLE = "ODP_STATE"


@dataclass(frozen=True)
class ServicesFolder:
    """The files of a state folder of `odp up`; none of them need exist."""

    root: Path

    @classmethod
    def find(cls, *, start: Path | None = None, environment: Mapping[str, str] = os.environ) -> ServicesFolder:
        """The folder that ``ODP_STATE`` names, else ``odp-state`` in the folder ``start`` or the nearest parent.

        Args:
          start: by default the working folder.
          environment: the variables of this process.

        Raises:
          ConfigurationError: there is none.
        """
        if named := environment.get(VARIABLE):
            folder = cls(Path(named))
            if not folder.ca.is_file():
                raise ConfigurationError(
                    f"{VARIABLE}={named!r} is no state folder of `odp up`; start it with `odp up --state {named}`"
                )
            return folder
        here = (Path.cwd() if start is None else start).absolute()
        for parent in (here, *here.parents):
            folder = cls(parent / NAME)
            if folder.ca.is_file():
                return folder
        raise ConfigurationError(
            f"no services were found: neither {here} nor a folder above it has {NAME}, the state folder of `odp up`; "
            f"run `odp up` there, or name its folder with state=.. or {VARIABLE}"
        )

    @property
    def ca(self) -> Path:
        """PEM file of the authority of all services' certificates."""
        return self.root / "ca" / "ca.pem"

    @property
    def reference_values(self) -> Path:
        """JSON file of the enclaves that devices accept, and of their addresses."""
        return self.root / "reference_values.json"

    @property
    def operator_token(self) -> Path:
        """What a developer shows to the server."""
        return self.root / "server" / "operator.token"

    def server_address(self) -> str:
        """The ``host:port`` that the server last served at, also after it stopped.

        Raises:
          ConfigurationError: this is no such folder, or no server served yet.
        """
        self.require()
        file = self.root / "server" / "address"
        try:
            return file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"cannot read {file}, the address of the server; start it with `odp up --state {self.root}`"
            ) from error

    def require(self) -> None:
        """Returns if services were started here. Raises ConfigurationError."""
        if not self.ca.is_file():
            raise ConfigurationError(
                f"{self.root} is no state folder of `odp up`; start it first, or give its folder or a CA file"
            )
