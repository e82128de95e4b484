"""How calls cross: servers, channels, who may call, refusals on the wire, batches."""
