"""Walls around a process, of the operating system's making: what enclaves and a developer's on-device code give up.

``kernel`` has the single restrictions, ``system_calls`` the lists of allowed calls and ``seccomp`` the filters made of
them, ``namespaces`` and ``private_memory`` what a process may have of its own. Which process takes which is said where
it starts: ``odp.enclave.sandbox`` and ``odp.isolated.walls``.
"""
