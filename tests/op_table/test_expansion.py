"""The op table as data: complete, consistent, editable."""

import ast
import inspect

import pytest

from ampcompat.engine.op_table import cast_rules, expansion

ROWS = expansion.rows()
BY_KEY = {row.key: row for row in ROWS}

# Specification 4. What torch's autocast casts is compared with its header in tests/casting/test_fake_cuda.py.
CONVOLUTIONS = "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc"
SPECIFIED = [
    ("torch.nn.functional", "half", CONVOLUTIONS + " linear"),
    ("torch", "half", CONVOLUTIONS + " prelu addmm addmv addr matmul mm mv addbmm baddbmm bmm"),
    ("torch.Tensor", "half", "__matmul__"),
    (
        "torch.nn.functional",
        "float",
        "interpolate grid_sample softplus softmin log_softmax softmax gelu layer_norm group_norm local_response_norm "
        "normalize cosine_similarity poisson_nll_loss cosine_embedding_loss cross_entropy hinge_embedding_loss kl_div "
        "l1_loss mse_loss margin_ranking_loss multilabel_margin_loss multilabel_soft_margin_loss multi_margin_loss "
        "nll_loss binary_cross_entropy_with_logits smooth_l1_loss soft_margin_loss triplet_margin_loss ctc_loss",
    ),
    (
        "torch",
        "float",
        "acos asin cosh erfinv exp expm1 log log10 log2 reciprocal rsqrt sinh tan pow cumprod cumsum dist norm prod "
        "std sum var renorm",
    ),
    ("torch.Tensor", "float", "__pow__ __rpow__ __rdiv__ __rtruediv__ cpu"),
    ("torch.Tensor", "float_in_place", "__ipow__"),
    ("torch", "promote", "addcdiv addcmul atan2 cross bilinear dot add div mul eq equal ge gt le lt ne"),
    ("torch.Tensor", "promote", "__add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __eq__ __lt__ __ge__"),
    ("torch.Tensor", "follow_self", "__iadd__ __isub__ __imul__ __itruediv__"),
    ("torch", "sequence", "cat stack"),
    ("torch.nn.functional", "banned", "binary_cross_entropy"),
]


@pytest.mark.parametrize("owner, rule, names", SPECIFIED, ids=lambda value: None)
def test_the_functions_of_the_specification_have_their_rule(owner, rule, names):
    wrong = {name: BY_KEY.get((owner, name)) for name in names.split()}
    assert {} == {name: row for name, row in wrong.items() if row is None or row.rule != rule}


def test_each_function_has_one_row_with_a_known_rule_and_a_reason():
    assert len(BY_KEY) == len(ROWS)
    assert {row.rule for row in ROWS} <= set(expansion.RULES)
    assert all(row.reason for row in ROWS)


@pytest.mark.parametrize("name, rule", [("exp_", "float_in_place"), ("mul_", "follow_self"), ("addmm_", "follow_self")])
def test_in_place_forms_follow_from_the_plain_row(name, rule):
    assert BY_KEY["torch.Tensor", name].rule == rule


def test_lerp_in_place_is_left_to_torch_as_steps_of_optimizers_consist_of_it():
    assert ("torch", "lerp") in BY_KEY
    assert not [key for key in BY_KEY if key[1] == "lerp_"]


def test_a_product_in_place_is_cast_only_by_its_own_rule():
    rows = [row for row in ROWS if row.name in ("addmm_", "addbmm_", "baddbmm_") and row.owner == "torch.Tensor"]
    assert len(rows) == 3 and all(row.no_nested_casts for row in rows)


def test_instance_norm_is_left_alone_as_apex_leaves_it():
    assert not [row for row in ROWS if row.name in ("instance_norm", "batch_norm", "mean", "sigmoid")]


def test_table_never_imports_torch():
    for module in (expansion, cast_rules):
        tree = ast.parse(inspect.getsource(module))
        imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
        names = [alias.name for node in imports for alias in node.names] + [getattr(n, "module", "") for n in imports]
        assert not [name for name in names if name and name.split(".")[0] == "torch"]


def test_unedited_lists_change_nothing():
    assert expansion.merge(ROWS, expansion.default_lists()) == ROWS


def test_default_lists_are_new_at_each_call():
    expansion.default_lists()["torch_overrides"]["FP16_FUNCS"].append("sigmoid")
    assert "sigmoid" not in expansion.default_lists()["torch_overrides"]["FP16_FUNCS"]


def merged(edit):
    lists = expansion.default_lists()
    edit(lists)
    return {row.key: row for row in expansion.merge(ROWS, lists)}


def test_appended_name_becomes_a_row_with_its_method():
    table = merged(lambda lists: lists["torch_overrides"]["FP32_FUNCS"].append("sigmoid"))
    assert table["torch", "sigmoid"].rule == table["torch.Tensor", "sigmoid"].rule == "float"
    assert table["torch.Tensor", "sigmoid_"].rule == "float_in_place"


def test_removed_name_is_left_alone_with_its_method_and_its_insides():
    table = merged(lambda lists: lists["torch_overrides"]["FP32_FUNCS"].remove("exp"))
    assert {table[owner, "exp"].rule for owner in ("torch", "torch.Tensor")} == {"passthrough"}
    assert table["torch", "exp"].no_nested_casts


def test_moved_name_has_its_new_rule():
    def move(lists):
        lists["functional_overrides"]["FP16_FUNCS"].remove("linear")
        lists["functional_overrides"]["FP32_FUNCS"].append("linear")

    row = merged(move)["torch.nn.functional", "linear"]
    assert (row.rule, row.no_nested_casts) == ("float", True)


def test_banned_entry_of_the_user_keeps_its_message():
    lists = expansion.default_lists()
    lists["torch_overrides"]["BANNED_FUNCS"].append(("sigmoid", "not here"))
    row = {row.key: row for row in expansion.merge(ROWS, lists)}["torch", "sigmoid"]
    assert (row.rule, row.message) == ("banned", "not here")


def test_registrations_come_last_and_seal_what_the_table_knows():
    owner = object()
    table = expansion.merge(ROWS, None, [(owner, "softmax", "half"), (owner, "mine", "float")])
    assert [(row.owner, row.name, row.rule, row.no_nested_casts) for row in table[-2:]] == [
        (owner, "softmax", "half", True),
        (owner, "mine", "float", False),
    ]
