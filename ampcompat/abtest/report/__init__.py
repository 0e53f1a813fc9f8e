"""Renders the report of an A/B run as text, as an HTML page and as charts."""
