"""Who leads a shard: elections over etcd, whose create revisions are the authority epochs that the shard row then confirms.

The client is our own, over grpc.aio. `etcd3` 0.12 (2020), which people look for first, cannot be imported with protobuf 4
or later, its forks are threaded and have neither election nor a watch that resumes, `aetcd` knows one endpoint and no TLS,
and `etcd3aio` loses its election's lease. What we need is five methods and two streams.

Safety never rests on etcd: a leader acts only after its epoch is greater than the one in the shard's row.
"""

from libs.authority.client import Compacted, EtcdClient, EtcdUnavailable, Rewound
from libs.authority.elections import ShardElections
from libs.authority.session import Session, SessionLost
from libs.authority.state import Board, Leader, Member, preferred

__all__ = [
    "Board",
    "Compacted",
    "EtcdClient",
    "EtcdUnavailable",
    "Leader",
    "Member",
    "Rewound",
    "Session",
    "SessionLost",
    "ShardElections",
    "preferred",
]
