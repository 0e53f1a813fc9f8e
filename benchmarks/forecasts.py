"""Placeholder while the cases are written."""
