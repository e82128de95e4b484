"""The SDK of Runway Control: write steps, run workers, launch runs.

    from runway_sdk import Context, step, workflow

A run is durable; attempts are disposable and fenced. What a step does outside itself goes through its Context.
"""

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")  # steps start programs: by exec, never by a bare fork

from runway_sdk.approvals import ApprovalRule, Approved, ApproverKey
from runway_sdk.children import (
    ALL,
    ANY,
    BEST_EFFORT,
    COLLECT_PARTIAL,
    FAIL_FAST,
    Child,
    Children,
    ChildrenFailed,
    ChildResult,
    Joined,
    JoinPolicy,
    k_of_n,
    quorum,
)
from runway_sdk.client import Client, RunFailed
from runway_sdk.connection import Target, find_target
from runway_sdk.context import Context
from runway_sdk.errors import (
    ApprovalRequired,
    BudgetExhausted,
    CapabilityDenied,
    CapacityTimedOut,
    EffectInFlight,
    EffectUnknown,
    EpochStale,
    InvalidRequest,
    LeaseLost,
    NotFound,
    Overloaded,
    RequestIdReused,
    RunStopped,
    RunwayError,
    StepFailed,
    ToolFailed,
    Unauthenticated,
    Unavailable,
    VersionConflict,
    YieldRequested,
)
from runway_sdk.results import Restored, StoredArtifact, ToolResult
from runway_sdk.sync_context import SyncContext
from runway_sdk.waiting import Answer
from runway_sdk.worker import Worker
from runway_sdk.workflow import Edge, Join, Retry, Step, Workflow, WorkflowError, step, workflow

__all__ = [
    "ALL",
    "ANY",
    "BEST_EFFORT",
    "COLLECT_PARTIAL",
    "FAIL_FAST",
    "Answer",
    "ApprovalRequired",
    "ApprovalRule",
    "Approved",
    "ApproverKey",
    "BudgetExhausted",
    "CapabilityDenied",
    "CapacityTimedOut",
    "Child",
    "ChildResult",
    "Children",
    "ChildrenFailed",
    "Client",
    "Context",
    "Edge",
    "EffectInFlight",
    "EffectUnknown",
    "EpochStale",
    "InvalidRequest",
    "Join",
    "JoinPolicy",
    "Joined",
    "LeaseLost",
    "NotFound",
    "Overloaded",
    "RequestIdReused",
    "Restored",
    "Retry",
    "RunFailed",
    "RunStopped",
    "RunwayError",
    "Step",
    "StepFailed",
    "StoredArtifact",
    "SyncContext",
    "Target",
    "ToolFailed",
    "ToolResult",
    "Unauthenticated",
    "Unavailable",
    "VersionConflict",
    "Worker",
    "Workflow",
    "WorkflowError",
    "YieldRequested",
    "find_target",
    "k_of_n",
    "quorum",
    "step",
    "workflow",
]
