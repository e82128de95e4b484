"""Fixtures of every test come from `libs.testkit.fixtures`."""

pytest_plugins = ["libs.testkit.fixtures"]
