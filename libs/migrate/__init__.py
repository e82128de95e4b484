"""How a service's schema comes to be and moves on: hand-written SQL in order, one version table in each schema.

Authoritative for roles and schemas (one role and one schema a service, nothing of another's readable) and for which version a
schema has. Can go wrong: two processes migrate at once (the second waits, then finds nothing to do); a migration fails (all of
the upgrade is undone).
"""

from libs.migrate.provision import provision
from libs.migrate.scripts import run_file, run_script
from libs.migrate.upgrade import migrate, pending

__all__ = ["migrate", "pending", "provision", "run_file", "run_script"]
