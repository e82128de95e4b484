"""What a run used and made, as one document: versions, steps, attempts, effects, approvals, checkpoints, artifacts, cost.

Authoritative for nothing: it is put together from what the services answer. The same ended run gives the same bytes each time:
everything is sorted, nothing depends on when it is asked. Inputs, outputs and answers are named by digest and size, and are not
in it. Can go wrong: a run that goes on. Its document is refused, because it would be another one a moment later.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import rfc8785
from google.protobuf import json_format
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Value
from runway.launch.v1 import launch_service_pb2 as pb

from runway_sdk.client import Client
from runway_sdk.errors import RunwayError

FORM = "runway.lineage/1"
OPEN_LINEAGE = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
PRODUCER = "urn:runway-control"
ENDED = frozenset(
    {pb.RUN_STATE_SUCCEEDED, pb.RUN_STATE_FAILED, pb.RUN_STATE_CANCELLED, pb.RUN_STATE_EXPIRED, pb.RUN_STATE_DENIED}
)
_EVENT = {"succeeded": "COMPLETE", "failed": "FAIL", "denied": "FAIL"}


async def lineage(client: Client, run_id: str) -> dict[str, Any]:
    """The document of an ended run."""
    run = await client.get(run_id)
    if run.state not in ENDED:
        raise RunwayError("only an ended run has a lineage that stays as it is: wait for it", reason="RUN_NOT_ENDED")
    ledger, attempts = await client.effects(run_id), await client.attempts(run_id)
    approvals = [one for one in await client.approvals.find(run_id=run_id) if one.run_id == run_id]  # not those below it
    return {
        "form": FORM,
        "run": _run(run),
        "steps": sorted((_step(step) for step in await client.steps(run_id)), key=lambda row: row["step_key"]),
        "attempts": _rows(attempts, ("step_key", "lease_epoch", "attempt_id"), ()),
        "effects": sorted((_effect(one) for one in ledger), key=lambda row: (row["step_key"], row["slot"])),
        "approvals": _rows(approvals, ("step_key", "slot", "approval_id"), ("content",)),
        "checkpoints": _rows(
            await client.checkpoints(run_id),
            ("step_key", "lease_epoch", "manifest_digest"),
            ("manifest", "signature", "key_id"),
        ),
        "artifacts": _rows(await client.artifacts(run_id), ("step_key", "name", "digest"), ()),
        "events": _rows(await client.events(run_id), ("sequence",), ()),
        "cost": {
            "micros": int(run.used.micros),
            "tokens": int(run.used.tokens),
            "of_effects_micros": sum(int(one.cost_micros) for one in ledger),
        },
    }


def canonical(document: Mapping[str, Any]) -> bytes:
    """Its canonical JSON (RFC 8785): what is signed, compared and stored."""
    return rfc8785.dumps(dict(document))


def open_lineage(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document as an OpenLineage RunEvent: the run, its job, what it made, and the whole of it as a facet."""
    run = document["run"]
    namespace = f"runway://{run['tenant']}/{run['project']}"
    facets: dict[str, Any] = {"runway_lineage": _facet({"document": document})}
    if run["forked_from"]:
        parent = {"run": {"runId": run["forked_from"]}, "job": {"namespace": namespace, "name": run["workflow"]["name"]}}
        facets["parent"] = _facet(parent)
    return {
        "eventType": _EVENT.get(run["outcome"], "ABORT"),
        "eventTime": run["finished_at"],
        "producer": PRODUCER,
        "schemaURL": OPEN_LINEAGE,
        "run": {"runId": run["run_id"], "facets": facets},
        "job": {
            "namespace": namespace,
            "name": run["workflow"]["name"],
            "facets": {"runway_version": _facet({name: run["workflow"][name] for name in ("number", "digest", "build")})},
        },
        "inputs": [_dataset(namespace, f"sha256/{run['input']['sha256']}", run["input"]["bytes"])] if run["input"] else [],
        "outputs": [
            _dataset(namespace, f"sha256/{made['digest']}", int(made["size_bytes"]), made["name"])
            for made in document["artifacts"]
        ],
    }


def _facet(body: Mapping[str, Any]) -> dict[str, Any]:
    return {"_producer": PRODUCER, "_schemaURL": "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/BaseFacet", **body}


def _dataset(namespace: str, name: str, size: int, title: str = "") -> dict[str, Any]:
    return {"namespace": namespace, "name": name, "facets": {"runway_bytes": _facet({"bytes": size, "title": title})}}


def _plain(message: Message, without: Sequence[str]) -> dict[str, Any]:
    made: dict[str, Any] = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return {name: value for name, value in made.items() if name not in without}


def _rows(messages: Sequence[Message], order: Sequence[str], without: Sequence[str]) -> list[dict[str, Any]]:
    """Messages as plain data, in an order that is their own."""
    ordered = sorted(messages, key=lambda message: tuple(getattr(message, name) for name in order))
    return [_plain(message, without) for message in ordered]


def _named(value: Value) -> dict[str, Any] | None:
    """A value by its digest; None where there is none."""
    if value.WhichOneof("kind") is None:
        return None
    raw = rfc8785.dumps(json_format.MessageToDict(value))
    return {"sha256": hashlib.sha256(raw).hexdigest(), "bytes": len(raw)}


def _run(run: pb.Run) -> dict[str, Any]:
    row = _plain(run, ("input", "output", "receipts", "wait_reasons", "last_sequence"))
    return {**row, "input": _named(run.input), "output": _named(run.output), "finished_at": row.get("finished_at", "")}


def _step(step: Any) -> dict[str, Any]:
    return {**_plain(step, ("output", "retry_at", "version", "wait_reason")), "output": _named(step.output)}


def _effect(effect: Any) -> dict[str, Any]:
    row = {**_plain(effect, ("result", "version")), "result": _named(effect.result)}
    row["tries"] = sorted(row["tries"], key=lambda one: one["n"])
    return row
