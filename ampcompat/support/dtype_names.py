"""The names of dtypes in messages and files."""


def dtype_name(dtype):
    """Return the name of a dtype without "torch."."""
    return str(dtype).replace("torch.", "")
