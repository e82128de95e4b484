"""Reads what workers were granted (`runway_sdk.serve --record-leases`) as facts of a history.

Can go wrong: a token in a report. Only its numbers are kept.
"""

import base64
import json
from pathlib import Path
from uuid import UUID

from runway.internal.fence.v1 import lease_pb2

from libs.drills.history import Fact


def read_leases(path: Path) -> list[Fact]:
    """One fact a lease; a line that a killed worker left unfinished is left out."""
    found: list[Fact] = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            said = json.loads(line)
            token = lease_pb2.LeaseToken.FromString(base64.b64decode(said["token"]))
        except ValueError:
            continue
        claims = lease_pb2.LeaseClaims.FromString(token.claims)
        found.append(
            {
                "t": 0.0,
                "who": "worker",
                "what": "lease",
                "run": str(UUID(bytes=claims.run_id)),
                "step": claims.step_key,
                "authority": claims.authority_epoch,
                "lease": claims.lease_epoch,
                "attempt": claims.attempt_id.hex(),
                "epoch": claims.epoch,
            }
        )
    return found
