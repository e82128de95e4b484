"""What the gateway reaches: tools, models, artifacts, keys, the machine."""
