"""Fixtures of every test come from `libs.testkit.fixtures`. No property is judged by how long an example took: machines are busy."""

from hypothesis import settings

pytest_plugins = ["libs.testkit.fixtures"]
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
