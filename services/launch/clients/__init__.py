"""Ports of launch that go over the wire."""
