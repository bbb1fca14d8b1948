"""The limits of one population at an enclave and its host, so that no developer can block others.

What each limit bounds: the event log that evidence carries, the work of a start, the memory of the enclave, and the
host's disk. Only the developer who reached a limit gets the error, which names it.
"""

from __future__ import annotations

#: Populations of one enclave.
MOST_POPULATIONS = 24
#: Changes of one population's charter from one start of the enclave to the next: each is a line of the event log.
MOST_CHANGES = 8
#: Tasks of one population that the enclave knows: those under way, and finished ones until newer ones need the room.
MOST_TASKS = 64
#: Their definitions together, in bytes.
MOST_DEFINITION_BYTES = 2**20
#: Rounds of one population that are open or charged.
MOST_OPEN_ROUNDS = 16
#: Noise of those rounds, and the newest release of each task, in bytes: of one task with 2^25 numbers, and more.
MOST_STORED_BYTES = 2**30
#: Streams of one population that are under way, and users that can take part in one: a start reads who did.
MOST_STREAMS = 2
MOST_STREAM_USERS = 2**17
#: Tasks of one population that were ended: each is remembered for good, so that it stays ended.
MOST_ABANDONED = 4096
#: Rounds that one population can charge: a start reads where each of them stands.
MOST_CHARGES = 10_000
#: Different events that one population can charge, and of those the ones of sampled rounds: each is a term of epsilon,
#: which is computed anew at every charge, while other populations wait. A sampled one is by far the slowest.
MOST_EVENTS = 1024
MOST_SAMPLED = 512
