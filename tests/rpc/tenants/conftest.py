"""All services in one process, a live attempt, and two tenants' keys."""

from tests.rpc.test_garbage import six
from tests.rpc.waits.conftest import bench

__all__ = ["bench", "six"]
