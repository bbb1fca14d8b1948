"""The first lines of a platform process: ``python -m odp.trust.enclave.platform_start``, started by ``launcher``.

They run where the host runs, and only become the platform's image: from then on, the process that holds the emulated
chip's keys runs nothing else, and can open no file outside of the chip's folder.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from pathlib import Path

from odp._system.sandbox import kernel
from odp._system.sandbox.frames import receive_frame, send_frame
from odp.errors import OdpError
from odp.transport import owner_files
from odp.trust.enclave.guest_socket import error_frame
from odp.trust.enclave.image.parts import ImageFile
from odp.trust.enclave.image.running import FIRST_INHERITED, become, loaded
from odp.trust.enclave.slots import CHIP_FILE

_FIRST = "odp.trust.enclave.platform_process"


def main() -> None:
    """``<control> <channel> <image> <platform image> <folder>``: four inherited descriptors and the chip's folder."""
    control, channel, image, platform = map(int, sys.argv[1:5])
    folder = Path(sys.argv[5])
    arguments = {"control": FIRST_INHERITED, "channel": FIRST_INHERITED + 1, "image": FIRST_INHERITED + 2}
    try:
        owner_files.make_private_folder(folder, marker=CHIP_FILE)
        file = ImageFile(platform)
        file.image.require_entry(_FIRST)
        with loaded(file) as memory:
            become(memory, _FIRST, (control, channel, image), arguments, files={str(folder): kernel.EVERYTHING})
    except (OdpError, OSError) as error:
        with socket.socket(fileno=control) as host, contextlib.suppress(OSError):
            receive_frame(host)
            send_frame(host, error_frame(error))
        os._exit(1)


if __name__ == "__main__":
    main()
