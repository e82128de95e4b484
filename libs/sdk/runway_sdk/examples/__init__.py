"""Workflows to read and run. The tests execute every one."""
