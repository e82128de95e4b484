"""The smallest workflow with a join: two steps side by side, and one that needs both."""

from pydantic import BaseModel

from runway_sdk import step, workflow


class Order(BaseModel):
    """The run's input."""

    item: str
    pieces: int


@step
def price(run: Order) -> int:
    """What one piece costs, in cents."""
    return 100 + len(run.item)


@step
def stock(run: Order) -> int:
    """How many there are."""
    return 7


@step
def offer(run: Order, price: int, stock: int) -> str:
    """What the customer reads."""
    pieces = min(run.pieces, stock)
    return f"{pieces} x {run.item} for {pieces * price / 100:.2f}"


flow = workflow("hello", steps=[price, stock, offer], input=Order)
