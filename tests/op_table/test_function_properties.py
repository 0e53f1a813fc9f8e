"""Facts about torch's functions: each has one owner."""

from ampcompat.engine.op_table import function_properties
from ampcompat.engine.op_table.function_properties import PROPERTIES, FunctionProperties, having


def test_each_fact_about_a_function_stands_once():
    stated = [(fact, name) for facts, names in function_properties._ROWS for name in names.split() for fact in facts]
    assert sorted(stated) == sorted(set(stated))


def test_a_function_has_the_facts_of_all_its_rows():
    assert PROPERTIES["add"] == FunctionProperties(is_difference=True, keeps_sign=True)
    assert "add" in having("is_difference") and "cat" not in having("is_difference")
