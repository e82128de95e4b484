"""The main path in one process with a worker, for graphs; over real gRPC, PostgreSQL and etcd."""

from tests.rpc.waits.conftest import bench

__all__ = ["bench"]
