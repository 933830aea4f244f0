"""Murmuration from Python: look at daemons, follow what they tell, read their journals, run a swarm on this machine.

    import murmur

    print(murmur.Node("127.0.0.1:4780").status().loss)

It needs nothing but Python's standard library. What a daemon tells are records; ``Record`` says what is in them. Fields are only
ever added, and what is not known is ``None``.
"""

from ._errors import MurmurError, NotRunning
from ._node import Node, Point, Status
from ._records import Record, read_journal
from ._swarm import Swarm, local

__all__ = ["MurmurError", "Node", "NotRunning", "Point", "Record", "Status", "Swarm", "local", "read_journal"]
