"""Layer 2: mechanisms, each usable alone in a test. Imports the tables."""
