"""Authoritative for how a provider is named where calls are: by the gateway, which knows who reaches it, and by who waits for
it. Pure.

What one call takes of a provider's bucket depends on its arguments, so a tool does not say which provider it calls: a step
names both, and only a pair that the gateway knows stands before a bucket. Can go wrong: a pair that reads like a tool. No
tool has a space in its name.
"""

PROVIDER = "provider:"
"""What begins the name of a provider, as `model:` does that of a model."""


def through(call: str, provider: str) -> str:
    """A tool, or model as `model:NAME`, in as far as it calls this provider, `provider:NAME`."""
    return f"{call} {provider}"
