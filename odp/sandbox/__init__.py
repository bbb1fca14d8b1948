"""Walls around a process, of the operating system's making: what enclaves and a developer's on-device code give up.

``kernel`` has the single restrictions, ``seccomp`` the filter of system calls, ``namespaces`` what a process may have
of its own. Which process takes which is said where it starts: ``odp.enclave.sandbox`` and ``odp.isolated.walls``.
"""
