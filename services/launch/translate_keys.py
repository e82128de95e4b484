"""Keys and projects → protobuf. A key's text is in no message but the answer that made it."""

from collections.abc import Sequence

from google.protobuf.timestamp_pb2 import Timestamp
from runway.launch.v1 import key_service_pb2 as keys
from runway.launch.v1 import project_service_pb2 as projects

from libs.kernel.refusal import Refusal
from services.launch.app.create_keys import NewKey
from services.launch.domain.facts import KeyRecord, Project


def _at(ms: int) -> Timestamp | None:
    return Timestamp(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000) if ms else None


def key_message(key: KeyRecord) -> keys.Key:
    """A key for people."""
    return keys.Key(
        key_id=str(key.key_id),
        name=key.name,
        project=key.project,
        roles=key.scopes,
        created_at=_at(key.created_ms),
        created_by=key.created_by,
        expires_at=_at(key.expires_ms),
        revoked_at=_at(key.revoked_ms),
        revoked_by=key.revoked_by,
    )


def one_of(outcomes: Sequence[NewKey | Refusal]) -> NewKey:
    """The only outcome."""
    (made,) = outcomes
    if isinstance(made, Refusal):
        raise made
    return made


def secret_of(made: NewKey, now_ms: int) -> tuple[keys.KeySecret.ValueType, str]:
    """Whether the answer has the key's text, and what to do where it has not."""
    if made.text:
        return keys.KEY_SECRET_SHOWN, ""
    ended = "was revoked" if made.record.revoked_ms else "has expired" if 0 < made.record.expires_ms <= now_ms else ""
    if ended:
        return keys.KEY_SECRET_NOT_KEPT, f"the key that this request made {ended}: make another under a new request_id"
    undo = f"`runway key revoke {made.record.key_id}`"
    return keys.KEY_SECRET_NOT_KEPT, f"whoever has lost its text revokes it ({undo}) and makes another under a new request_id"


def project_message(project: Project) -> projects.Project:
    """A project for people."""
    return projects.Project(
        project=project.project,
        state=projects.ProjectState.ValueType(project.state),
        reason=project.reason,
        changed_by=project.changed_by,
        changed_at=_at(project.changed_ms),
        version=project.version,
    )
