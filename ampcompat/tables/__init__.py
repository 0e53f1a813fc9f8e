"""Layer 1: data without behaviour. Imports nothing of ampcompat but its errors."""
