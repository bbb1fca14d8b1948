"""Restrictions of processes by the operating system, for enclaves and for a developer's on-device code.

``kernel`` has the single restrictions, ``system_calls`` the lists of allowed calls and ``seccomp`` the filters made of
them, ``namespaces`` and ``private_memory`` what a process may have of its own. Which process takes which is said where
it starts: ``odp.trust.enclave.sandbox`` and ``odp.isolated.walls``.
"""
