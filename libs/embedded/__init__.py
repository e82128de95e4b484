"""The PostgreSQL and etcd that `runway dev` and the tests start as children of their own process.

Authoritative for where the binaries come from, which account runs them, and that they end with their owner. Knows no service.
Can go wrong: no binary, no account that may run it, a folder that another process owns. Each is an `EmbeddedError` that
says what to do.
"""

from libs.embedded.etcd import EmbeddedEtcd
from libs.embedded.postgres import EmbeddedPostgres, running_url
from libs.embedded.process import EmbeddedError, dies_with_the_owner, free_port

__all__ = ["EmbeddedError", "EmbeddedEtcd", "EmbeddedPostgres", "dies_with_the_owner", "free_port", "running_url"]
