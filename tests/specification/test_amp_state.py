"""Specification 5: the names that clients reach into, and the loops that they build with them."""

import pytest
import torch
import torch.nn.functional as F
from helpers import loops, precision
from helpers.networks import (
    INPUT,
    Product,
    begin,
    each_setting,
    initialize,
    make_batch,
    make_network,
    session_of,
    settings_at,
    train_step,
)

import ampcompat
from ampcompat import amp

STATE = amp._amp_state


@pytest.fixture
def setting_at_o2():
    model = make_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    return model, optimizer, STATE.loss_scalers[0]


@pytest.fixture
def scaler(setting_at_o2):
    return setting_at_o2[2]


@each_setting
def test_loss_scalers_show_scale_count_and_kind(setting, session):
    model, optimizer = begin(setting, loss_scale="dynamic", num_losses=2)
    first, second = STATE.loss_scalers
    first._loss_scale = 64.0
    train_step(model, optimizer, make_batch(setting))
    assert (first.loss_scale(), first._loss_scale, first._unskipped, first.dynamic) == (64.0, 64.0, 1, True)
    assert (second.loss_scale(), second._loss_scale) == (65536.0, 65536.0)
    assert (second._unskipped, second.dynamic) == (0, True)


@pytest.mark.parametrize("overflow", [False, True])
def test_a_scaler_unscales_clears_and_updates_as_apexs_does(overflow, scaler):
    model_grads = [torch.tensor([65536.0, float("inf") if overflow else 0.0]), torch.tensor([2.0**15])]
    master_grads = [torch.zeros(2), torch.zeros(1)]
    scaler.clear_overflow_state()
    scaler.unscale(model_grads, master_grads, scaler.loss_scale())
    assert master_grads[0][0] == 1.0 and master_grads[1] == 0.5
    assert scaler.update_scale() is overflow
    assert scaler.loss_scale() == (32768.0 if overflow else 65536.0)
    scaler.unscale([torch.tensor([float("nan")])], [torch.zeros(1)], scaler.loss_scale())
    scaler.clear_overflow_state()
    assert scaler.update_scale() is False


def test_the_overflow_buffer_shows_what_unscale_found(scaler):
    before = scaler._overflow_buf
    assert (before.dtype, tuple(before.shape), before.item()) == (torch.int32, (1,), 0)
    scaler.unscale([torch.tensor([float("inf")])], [torch.zeros(1)], scaler.loss_scale())
    assert scaler._overflow_buf is before and before.item() == 1
    assert scaler.update_scale() is True and scaler.loss_scale() == 32768.0
    scaler.unscale([torch.ones(1)], [torch.zeros(1)], scaler.loss_scale())
    assert before.item() == 0 and scaler.update_scale() is False


def test_the_overflow_buffer_is_made_of_what_was_found_before_somebody_looked(scaler):
    scaler.unscale([torch.tensor([float("nan")])], [torch.zeros(1)], scaler.loss_scale())
    assert scaler._overflow_buf.item() == 1
    scaler._overflow_buf.zero_()
    assert scaler.update_scale() is False and scaler.loss_scale() == 65536.0


@pytest.mark.parametrize("overflow", [False, True])
def test_a_scaler_says_whether_the_last_backward_pass_overflowed(overflow):
    model = make_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    scaler = STATE.loss_scalers[0]
    scaler._loss_scale = 8.0
    assert not scaler._has_overflow
    for factor in (float("inf") if overflow else 1.0, 1.0):
        loops.backward(model(make_batch()[0]).sum() * factor, optimizer)
        assert bool(scaler._has_overflow) is (factor != 1.0)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("found", [True, False])
def test_an_overflow_that_a_client_writes_counts_in_the_next_update(scaler, found):
    scaler._has_overflow = found  # such as the maximum over the ranks
    assert scaler._has_overflow is found
    assert scaler.update_scale() is found and scaler.loss_scale() == (32768.0 if found else 65536.0)
    scaler.clear_overflow_state()
    assert not scaler._has_overflow and scaler.update_scale() is False
    assert scaler.has_fused_kernel and not scaler.warned_no_fused_kernel


@pytest.mark.parametrize("found", [True, False])
def test_what_is_written_to_the_overflow_buffer_in_place_counts(found, scaler):
    grads = [torch.tensor([1.0 if found else float("inf")])]
    buffer = scaler._overflow_buf
    scaler.unscale(grads, grads, scaler.loss_scale(), models_are_masters=True)
    buffer.fill_(int(found))
    assert scaler.update_scale() is found
    scaler.clear_overflow_state()
    assert buffer.item() == 0


@pytest.mark.parametrize("form", [torch.zeros(1, dtype=torch.int32), torch.zeros((), dtype=torch.int64)], ids=str)
def test_a_buffer_of_the_clients_own_is_obeyed(setting_at_o2, form):
    model, optimizer, scaler = setting_at_o2
    own = form.clone()
    scaler.unscale([torch.tensor([float("inf")])], [torch.zeros(1)], scaler.loss_scale())
    scaler._overflow_buf = own  # what was found before is in the buffer that it replaces
    assert scaler.update_scale() is False and scaler.loss_scale() == 65536.0
    own.fill_(1)  # as an all-reduce does with the flag of another rank
    assert scaler.update_scale() is True and scaler.loss_scale() == 32768.0
    train_step(model, optimizer, make_batch())
    assert not amp.step_was_skipped(optimizer) and own.item() == 0 and scaler._overflow_buf is own
    loops.step(model(make_batch()[0]).sum() * float("inf"), optimizer)
    assert amp.step_was_skipped(optimizer) and own.item() == 1


@pytest.mark.parametrize("wrong", [None, 1, torch.zeros(2)], ids=str)
def test_something_else_than_a_tensor_of_one_element_is_no_overflow_buffer(scaler, wrong):
    with pytest.raises(TypeError, match="_overflow_buf must be a tensor of one element"):
        scaler._overflow_buf = wrong
    assert scaler.update_scale() is False


def test_a_pass_that_raises_leaves_the_overflow_buffer_as_it_was(setting_at_o2):
    model, optimizer, scaler = setting_at_o2
    scaler._overflow_buf.fill_(1)
    with pytest.raises(KeyError):
        with amp.scale_loss(model(make_batch()[0]).sum(), optimizer) as scaled_loss:
            scaled_loss.backward()
            raise KeyError
    assert scaler._overflow_buf.item() == 1 and scaler.update_scale() is True


def test_a_scaler_unscales_in_place_where_models_are_masters(scaler):
    grads = [torch.tensor([65536.0])]
    scaler.unscale(grads, grads, scaler.loss_scale(), models_are_masters=True)
    assert grads[0] == 1.0


def test_the_state_modules_master_params_is_amps(setting_at_o2):
    optimizer = setting_at_o2[1]
    assert list(STATE.master_params(optimizer)) == list(amp.master_params(optimizer))


# -- the stash ---------------------------------------------------------------------------------------------------------


@each_setting
def test_the_stash_marks_a_wrapped_optimizer_and_lists_its_params(setting, session):
    model = make_network(setting)
    optimizer = torch.optim.SGD(
        [{"params": list(model[0].parameters())}, {"params": list(model[1:].parameters()), "lr": 0.5}], lr=0.1
    )
    assert not hasattr(optimizer, "_amp_stash")
    initialize(setting, model, optimizer)
    stash = optimizer._amp_stash
    assert stash.lazy_init_called is True
    half = [param for param in model.parameters() if setting.has_masters and param.dtype is setting.low]
    assert list(map(id, stash.all_fp16_params)) == list(map(id, half))
    masters = stash.all_fp32_from_fp16_params
    assert [(m.dtype, m.shape) for m in masters] == [(setting.high, p.shape) for p in half]
    assert all(torch.equal(m.detach().to(p.dtype), p.detach()) for m, p in zip(masters, half))
    sizes = [2, 2] if setting.has_masters else [0, 0]
    assert list(map(len, stash.fp16_groups)) == list(map(len, stash.fp32_from_fp16_groups)) == sizes
    assert [id(p) for group in stash.fp16_groups for p in group] == list(map(id, half))


@each_setting
def test_already_patched_tells_of_the_skip_to_come(setting, session):
    model, optimizer = begin(setting, loss_scale="dynamic")
    assert not optimizer._amp_stash.already_patched
    loops.backward(model(make_batch(setting)[0]).sum() * float("inf"), optimizer)
    assert optimizer._amp_stash.already_patched
    optimizer.step()
    assert not optimizer._amp_stash.already_patched


@each_setting
def test_the_stages_can_be_called_one_by_one(setting, session):
    model = Product(1.0).to(setting.high)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    initialize(setting, model, optimizer, loss_scale=64.0)
    optimizer._lazy_init_maybe_master_weights()
    optimizer._amp_lazy_init()
    scaler = STATE.loss_scalers[0]
    optimizer._prepare_amp_backward()
    (model(INPUT.to(setting.high)).sum().to(setting.high) * scaler.loss_scale()).backward()
    scaler.clear_overflow_state()
    optimizer._post_amp_backward(scaler)
    assert scaler.update_scale() is False
    assert [param.grad.tolist() for param in amp.master_params(optimizer)] == [[1.5, -0.375], [1.0, -0.625]]
    optimizer.step()
    with torch.no_grad():
        for master in amp.master_params(optimizer):
            master.fill_(0.5)
    optimizer._master_params_to_model_params()
    assert all(param.tolist() == [0.5, 0.5] for param in model.parameters())


@settings_at("O2", "O5")
def test_a_loop_that_checks_overflow_itself_as_nvidias_bert_does(setting, session):
    model, optimizer = begin(setting, loss_scale="dynamic")
    scaler = STATE.loss_scalers[0]
    scaler._loss_scale = 64.0
    skipped = []
    for iteration in range(4):
        loss = model(make_batch(setting)[0]).sum() * (float("inf") if iteration == 1 else 1.0)
        loops.backward(loss, optimizer, delay_overflow_check=True)
        had_overflow = scaler.update_scale()
        if had_overflow:
            if STATE.opt_properties.master_weights:
                for param in optimizer._amp_stash.all_fp32_from_fp16_params:
                    param.grad = None
            for param in model.parameters():
                param.grad = None
        else:
            optimizer.step()
            optimizer.zero_grad()
        skipped.append(had_overflow)
    assert skipped == [False, True, False, False]
    assert (scaler.loss_scale(), scaler._unskipped) == (32.0, 2)


# -- lists, levels, properties -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["functional_overrides", "torch_overrides", "tensor_overrides"])
def test_the_op_lists_have_apexs_names(name):
    lists = getattr(amp.lists, name)
    for kind in ("FP16_FUNCS", "FP32_FUNCS", "CASTS", "SEQUENCE_CASTS", "BANNED_FUNCS"):
        assert isinstance(getattr(lists, kind), list)
    assert "linear" in amp.lists.functional_overrides.FP16_FUNCS
    assert "mm" in amp.lists.torch_overrides.FP16_FUNCS
    assert "cat" in amp.lists.torch_overrides.SEQUENCE_CASTS
    assert "binary_cross_entropy" in [entry[0] for entry in amp.lists.functional_overrides.BANNED_FUNCS]


@settings_at("O1", "O4")
def test_what_users_do_to_the_lists_counts(setting):
    amp.lists.torch_overrides.FP32_FUNCS.append("relu")
    amp.lists.torch_overrides.FP16_FUNCS.remove("mm")
    x = torch.ones(2, 2, dtype=setting.high)
    with session_of(setting):
        initialize(setting, make_network(setting))
        assert torch.relu(x.to(setting.low)).dtype is setting.high
        assert torch.mm(x, x).dtype is setting.high
        assert torch.bmm(x[None], x[None]).dtype is setting.low


def test_levels_fill_properties(level):
    properties = amp.opt_levels[level](amp.Properties())
    assert properties.opt_level == level and properties.enabled is True
    assert list(properties.options)[:2] == ["enabled", "opt_level"]
    assert amp.opt_levels[level].brief.startswith(level)
    properties.loss_scale = "128.0"
    assert properties.loss_scale == properties.options["loss_scale"] == 128.0
    with pytest.raises(AttributeError):
        properties.no_such_option


def test_properties_refuse_what_makes_no_sense():
    properties = amp.opt_levels["O1"](amp.Properties())
    with pytest.raises(RuntimeError, match="master"):
        properties.master_weights = True


def test_a_clients_own_scale_loss_marks_the_gradients_as_unscaled(setting_at_o2):
    model, optimizer, scaler = setting_at_o2
    scaler._loss_scale = 8.0
    masters = [param.clone() for param in amp.master_params(optimizer)]
    if not optimizer._amp_stash.params_have_scaled_gradients:
        optimizer._prepare_amp_backward()
    (model(make_batch()[0]).float().sum() * scaler.loss_scale()).backward()
    scaler.clear_overflow_state()
    optimizer._post_amp_backward(scaler)
    optimizer._amp_stash.params_have_scaled_gradients = False
    STATE.handle._clear_cache()
    assert optimizer._amp_stash.params_have_scaled_gradients is False
    optimizer.step()
    assert not any(map(torch.equal, masters, amp.master_params(optimizer)))


def test_gradients_that_a_clients_own_scale_loss_leaves_scaled_are_unscaled_with_the_next_ones(setting_at_o2):
    model, optimizer, scaler = setting_at_o2
    scaler._loss_scale = 8.0
    x = make_batch()[0]
    for is_last in (False, True):
        (model(x).float().sum() * scaler.loss_scale()).backward()
        if not is_last:
            optimizer._amp_stash.params_have_scaled_gradients = True
    assert optimizer._amp_stash.params_have_scaled_gradients is True
    optimizer._post_amp_backward(scaler)
    optimizer._amp_stash.params_have_scaled_gradients = False
    found = [param.grad.clone() for param in amp.master_params(optimizer)]
    optimizer.zero_grad()
    loops.backward(model(x).sum() * 2, optimizer)
    assert all(map(torch.allclose, found, [param.grad for param in amp.master_params(optimizer)]))


def test_a_clients_own_skipped_step_is_marked_in_the_stash(setting_at_o2):
    stash = setting_at_o2[1]._amp_stash
    assert stash.already_patched is False
    for value in (True, False):
        stash.already_patched = value
        assert stash.already_patched is value


# -- the API from before 2019 ------------------------------------------------------------------------------------------


def test_init_casts_functions_and_its_handle_points_to_the_new_call():
    x = torch.ones(2, 2, dtype=precision.HIGH)
    handle = amp.init()
    assert torch.mm(x, x).dtype is precision.LOW and F.softmax(x.to(precision.LOW), -1).dtype is precision.HIGH
    assert handle.is_active() is True
    with handle._disable_casts():
        assert torch.mm(x, x).dtype is precision.HIGH and handle.is_active() is False
    for call in (lambda: handle.scale_loss(x.sum(), None), lambda: handle.wrap_optimizer(None, num_loss=2)):
        with pytest.raises(RuntimeError, match=r"amp\.(initialize|scale_loss)"):
            with call():
                pass


def test_the_handle_of_a_disabled_init_leaves_losses_and_optimizers_alone():
    handle = amp.init(enabled=False)
    model = make_network()
    optimizer = handle.wrap_optimizer(torch.optim.SGD(model.parameters(), lr=0.25), num_loss=2)
    loss = model(make_batch()[0]).sum()
    with handle.scale_loss(loss, optimizer) as scaled_loss:
        assert scaled_loss is loss
    before = model[0].weight.clone()
    with optimizer.scale_loss(loss) as scaled_loss:
        assert scaled_loss is loss
        scaled_loss.backward()
    optimizer.step()
    assert not torch.equal(model[0].weight, before)
    optimizer.param_groups[0]["lr"] = 0.5
    assert optimizer.state_dict()["param_groups"][0]["lr"] == 0.5
    assert handle.is_active() is False and torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype is torch.float32
    handle._deactivate()
    assert amp.state_dict() == {} and ampcompat.current() is not None


def test_initialize_after_init_works():
    amp.init()
    model = make_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    amp.initialize(model, optimizer, opt_level="O1", loss_scale=8.0, verbosity=0)
    first = train_step(model, optimizer, make_batch())
    assert train_step(model, optimizer, make_batch()) < first


def test_the_state_has_a_handle_after_initialize(level):
    amp.initialize(make_network(), opt_level=level, verbosity=0)
    assert STATE.handle.is_active() is (level in ("O1", "O4"))


@settings_at("O1", "O4")
def test_casts_pause_while_the_handle_is_marked_as_not_active(setting, session):
    x = torch.ones(2, 2, dtype=setting.high)
    initialize(setting, make_network(setting))
    for value in (False, False, True, True):
        STATE.handle._is_active = value
        assert STATE.handle._is_active is STATE.handle.is_active() is value
        assert torch.mm(x, x).dtype is (setting.low if value else setting.high)


def test_a_handle_that_is_deactivated_leaves_torch_as_it_was_and_can_be_asked_for_again():
    x = torch.ones(2, 2, dtype=precision.HIGH)
    before = dict(vars(torch)), dict(vars(F))
    handle = amp.init()
    assert torch.mm(x, x).dtype is precision.LOW
    handle._deactivate()
    assert (dict(vars(torch)), dict(vars(F))) == before and ampcompat.current() is None
    assert torch.mm(x, x).dtype is precision.HIGH and handle.is_active() is False
    handle._deactivate()
    again = amp.init()
    assert torch.mm(x, x).dtype is precision.LOW and again.is_active() is True
    handle._deactivate()  # of a session that is over: the present one stays
    assert torch.mm(x, x).dtype is precision.LOW
    again._deactivate()


@settings_at("O1", "O4")
@pytest.mark.parametrize("same_model", [True, False])
def test_initialize_casts_again_after_the_handle_was_deactivated(setting, same_model, session):
    model, optimizer = begin(setting, loss_scale="dynamic")
    train_step(model, optimizer, make_batch(setting))
    STATE.handle._deactivate()
    x = torch.ones(2, 2, dtype=setting.high)
    assert torch.mm(x, x).dtype is setting.high and STATE.handle.is_active() is False
    train_step(model, optimizer, make_batch(setting))
    if same_model:
        initialize(setting, model, optimizer, loss_scale="dynamic")
    else:
        begin(setting, loss_scale="dynamic")
    assert torch.mm(x, x).dtype is setting.low and STATE.handle.is_active() is True


@settings_at("O0", "O2")
def test_deactivating_changes_nothing_where_no_functions_are_cast(setting, session):
    model, optimizer = begin(setting, loss_scale="dynamic")
    STATE.handle._deactivate()
    train_step(model, optimizer, make_batch(setting))
    assert not amp.step_was_skipped(optimizer)


@pytest.mark.parametrize("initialized", [False, True])
def test_init_allows_banned_functions_where_it_is_asked_to(initialized):
    if initialized:
        amp.initialize(make_network(), opt_level="O1", verbosity=0)
    handle = amp.init(allow_banned=True)
    x = torch.full((2,), 0.5, dtype=precision.LOW)
    assert F.binary_cross_entropy(x, x.to(precision.HIGH)).dtype is precision.HIGH
    handle._deactivate()
    amp.init()
    with pytest.raises(NotImplementedError, match="binary_cross_entropy_with_logits"):
        F.binary_cross_entropy(x, x.to(precision.HIGH))


def test_init_casts_to_bfloat16_where_it_is_asked_to():
    x = torch.ones(2, 2, dtype=precision.HIGH)
    handle = amp.init(patch_type=torch.bfloat16)
    assert torch.mm(x, x).dtype is precision.low_of("O4")
    handle._deactivate()
