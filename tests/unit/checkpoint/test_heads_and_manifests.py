"""The compare-and-set of heads, the form of manifests, and names, each by themselves."""

import json
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.kernel.epochs import StepFence
from libs.kernel.ids import digest
from libs.kernel.refusal import Reason, Refusal
from services.checkpoint.domain.heads import Follow, Known, decide
from services.checkpoint.domain.manifests import content_of, manifest_of
from services.checkpoint.domain.names import check_header
from services.checkpoint.domain.values import Checkpoint, Commit, Head, Header, Holder, Sealed

HOLDER = Holder(
    "acme", "web", UUID(int=7), "build", StepFence(2**61, 2**40 + 1, UUID(int=9)), 3, False, "demo.build@1", b"w" * 32
)
COMMIT = Commit(HOLDER, b"", 1, "start", (b"c" * 32,), 10, (), (), {})
HEADS = st.sampled_from([None, Head(b"h", 3), Head(b"h", 3, b"r", 1), Head(b"h", 3, b"", 0)])


def sealed(commit: Commit, name: bytes = b"new") -> Sealed:
    return Sealed(commit, b"", name, b"", b"")


@pytest.mark.requirement("cp.exact")
@given(HEADS, st.sampled_from([b"", b"h", b"r", b"x"]), st.integers(1, 5), st.sampled_from([b"new", b"h"]))
def test_a_commit_follows_the_head_or_where_it_is_damaged_the_newest_that_verifies(
    head: Head | None, parent: bytes, sequence: int, name: bytes
) -> None:
    decision = decide(head, sealed(replace(COMMIT, parent=parent, sequence=sequence), name))
    if head is not None and name == head.digest:
        assert decision is Known.REPLAYED
        return
    allowed = {b"": 0} if head is None else {head.digest: head.sequence}
    if head is not None and head.resume is not None:
        allowed[head.resume] = head.resume_sequence
    if parent not in allowed:
        assert isinstance(decision, Refusal)
        assert decision.reason is Reason.CHECKPOINT_CONFLICT
    elif sequence <= allowed[parent]:
        assert isinstance(decision, Refusal)
        assert decision.reason is Reason.INVALID_FIELD
    else:
        assert decision == Follow(head.digest if head else b"")


@pytest.mark.requirement("cp.exact")
def test_a_manifest_is_canonical_and_carries_epochs_exactly() -> None:
    one = replace(COMMIT, versions={"b": "2", "a": "1"})
    two = replace(COMMIT, versions={"a": "1", "b": "2"})
    assert manifest_of(one) == manifest_of(two)
    said = json.loads(manifest_of(one))
    assert said["authority_epoch"] == str(2**61)
    assert manifest_of(one) == json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    other = replace(COMMIT, holder=replace(HOLDER, fence=replace(HOLDER.fence, attempt_id=UUID(int=10))))
    assert manifest_of(other) != manifest_of(COMMIT), "another attempt's commit is another checkpoint"


def row(manifest: bytes) -> Checkpoint:
    return Checkpoint(
        "acme", "web", UUID(int=7), "build", digest(manifest), b"", 1, "start", UUID(int=9), 1, 10, manifest, b"", b"", 0
    )


def test_a_manifest_of_something_else_is_not_taken_for_this_row() -> None:
    manifest = manifest_of(COMMIT)
    assert content_of(row(manifest)).chunks == (b"c" * 32,)
    for broken in (
        b"",
        b"[]",
        b"{}",
        manifest.replace(b"build", b"other", 2),
        manifest.replace(b'"chunks":["63', b'"chunks":["zz'),
    ):
        with pytest.raises(Refusal) as no:
            content_of(row(broken))
        assert no.value.reason is Reason.CHECKPOINT_CORRUPT


@given(st.text(max_size=300))
def test_only_plain_file_names_are_taken(name: str) -> None:
    plain = len(name) <= 200 and name == name.strip() and name not in (".", "..") and not set(name) & set("/\\\0\n\r\x1b\u2028")
    try:
        check_header(Header(name, "", b"", 0))
    except Refusal as no:
        assert no.field in ("header.name",)  # noqa: PT017
    else:
        assert plain
