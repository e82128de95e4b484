"""A workflow whose one step must run in one region, on a worker with one label."""

from runway_sdk import step, workflow


@step(region="eu", requires=["gpu"])
def here() -> str:
    """Says where it ran."""
    return "eu"


flow = workflow("regional", steps=[here])
