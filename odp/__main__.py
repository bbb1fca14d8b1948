"""``python -m odp`` is the ``odp`` command."""

from odp._system.own_packages import leave_current_folder

leave_current_folder()

from odp.cli.main import main  # noqa: E402  # what hides a package is off the path first

main()
