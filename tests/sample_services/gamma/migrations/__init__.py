"""Migrations of a sample service."""
