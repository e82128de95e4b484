"""Workflows for the crash kit: one that keeps the rules, and some that break one each."""

import secrets
import urllib.request
from datetime import timedelta

from pydantic import BaseModel
from runway_sdk import Context, Retry, step, workflow

QUICK = timedelta(seconds=2)
PATIENT = Retry(max_attempts=6, initial=timedelta(milliseconds=50))


class Order(BaseModel):
    label: str
    port: int = 0


async def ordered(ctx: Context, run: Order, number: int, replay: str, target: str = "shop") -> int:
    arguments = {"target": target, "method": "POST", "path": f"/order/{run.label}/{number}"}
    answer = await ctx.tool("http.request", arguments, slot=f"order-{number}", replay=replay)
    return int(answer.value["status"])


@step(tools=["http.request"], lease_ttl=QUICK, retry=PATIENT)
async def order(ctx: Context, run: Order) -> list[int]:
    return [await ordered(ctx, run, number, "idempotent") for number in (1, 2)]


@step(lease_ttl=QUICK, retry=PATIENT)
def thank(run: Order, order: list[int]) -> str:
    return f"{run.label}: {order}"


buying = workflow("buying", steps=[order, thank], input=Order)


@step(tools=["http.request"], lease_ttl=QUICK, retry=PATIENT)
async def mail(ctx: Context, run: Order) -> int:
    return await ordered(ctx, run, 1, "non_replayable", target="counter")


mailing = workflow("mailing", steps=[mail], input=Order)


@step(lease_ttl=QUICK, retry=PATIENT)
def post(run: Order) -> str:
    """Goes around the gateway: nobody keeps it from doing this twice."""
    request = urllib.request.Request(f"http://127.0.0.1:{run.port}/direct/{run.label}", data=b"{}", method="POST")
    with urllib.request.urlopen(request, timeout=10) as answer:
        return str(answer.status)


posting = workflow("posting", steps=[post], input=Order)


@step(lease_ttl=QUICK, retry=PATIENT)
def dice(run: Order) -> str:
    return secrets.token_hex(4)


rolling = workflow("rolling", steps=[dice], input=Order)


@step(lease_ttl=QUICK, retry=PATIENT)
async def tries(ctx: Context, run: Order) -> int:
    return ctx.attempt_number


counting = workflow("counting", steps=[tries], input=Order)
