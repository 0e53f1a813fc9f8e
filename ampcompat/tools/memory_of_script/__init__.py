"""``python -m ampcompat estimate``: one step of a script on fake tensors."""
