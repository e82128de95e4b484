"""The one door to PostgreSQL: named statements, a pool set up for hot paths, transactions, and the database's incarnation.

Authoritative for how a commit ends. Can go wrong: the database is away (`AUTHORITY_UNREACHABLE`), or a commit's answer was
lost (the same, with detail `commit = unknown`: read back what you meant to write before you say anything).
"""

from libs.pg.database import Database
from libs.pg.queries import Queries, Statement
from libs.pg.tx import Tx

__all__ = ["Database", "Queries", "Statement", "Tx"]
