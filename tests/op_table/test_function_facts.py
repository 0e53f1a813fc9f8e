"""Facts about torch's functions: one row per function."""

from ampcompat.engine.op_table import function_facts


def test_each_function_has_one_row():
    names = [name for row, _ in function_facts._ROWS for name in row.split()]
    assert sorted(names) == sorted(set(names))
