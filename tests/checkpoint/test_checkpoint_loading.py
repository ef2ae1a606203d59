"""Filling a network: every key is used, or the reason is stated."""

from __future__ import annotations

import logging

import pytest
import torch
from checkpoint_toys import Tied, Toy, family

from libreyolo_core.checkpoint import fit_classes, load_into
from libreyolo_core.errors import CheckpointError, PluginError
from libreyolo_core.family import Checkpoint

PLAIN = Checkpoint()


def refused(network, state, rules=PLAIN) -> str:
    before = {k: v.clone() for k, v in network.state_dict().items()}
    with pytest.raises(CheckpointError) as caught:
        load_into(network, state, rules)
    assert all(torch.equal(v, before[k]) for k, v in network.state_dict().items())
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_state_dict_of_the_same_network_loads_without_a_remark():
    source, target = Toy(nc=3), Toy(nc=3)
    report = load_into(target, source.state_dict(), PLAIN)
    assert report.missing == report.unexpected == report.reshaped == ()
    assert all(torch.equal(v, target.state_dict()[k]) for k, v in source.state_dict().items())


def test_missing_left_over_and_misshapen_keys_are_counted_and_named():
    state = Toy(nc=3).state_dict()
    for key in ("box.weight", "box.bias", "norm.weight", "norm.bias"):
        del state[key]
    state["old.weight"] = torch.ones(1)
    state["cls.bias"] = torch.ones(5)
    text = refused(Toy(nc=3), state)
    assert "4 keys are missing (norm.weight, norm.bias, box.weight, ...)" in text
    assert "1 are left over (old.weight)" in text
    assert "1 have another shape (cls.bias: 5 in the file, 3 in the model)" in text


def test_keys_are_renamed_in_order():
    source = Toy(nc=3).state_dict()
    state = {k.replace("cls.", "head.last."): v for k, v in source.items()}
    target = Toy(nc=3)
    load_into(target, state, Checkpoint(rename=((r"^head\.", "classifier."), (r"^classifier\.last\.", "cls."))))
    assert torch.equal(target.cls.weight, source["cls.weight"])


def test_two_keys_under_one_name_are_an_error():
    state = {**Toy(nc=3).state_dict(), "head.weight": torch.ones(1)}
    text = refused(Toy(nc=3), state, Checkpoint(rename=(("^head", "cls"),)))
    assert "'cls.weight' and 'head.weight' both become 'cls.weight'" in text


@pytest.mark.parametrize("pattern", ["decoder.anchors", "anchors", "decoder.*", "*anchors"])
def test_dropped_keys_are_ignored_whole_or_by_their_ending(pattern):
    state = {**Toy(nc=3).state_dict(), "decoder.anchors": torch.ones(4)}
    assert load_into(Toy(nc=3), state, Checkpoint(drop=(pattern,))).unexpected == ("decoder.anchors",)


def test_an_ending_is_a_whole_part_of_a_name():
    state = {**Toy(nc=3).state_dict(), "decoder.my_anchors": torch.ones(4)}
    assert "my_anchors" in refused(Toy(nc=3), state, Checkpoint(drop=("anchors",)))


def test_a_dropped_key_that_the_network_computes_itself_keeps_its_value():
    target = Toy(nc=3)
    target.box.bias.data.fill_(7)
    load_into(target, Toy(nc=3).state_dict(), Checkpoint(drop=("box.bias",)))
    assert target.box.bias.tolist() == [7.0] * 4


def test_training_only_modules_may_be_on_either_side():
    rules = Checkpoint(training_only=("aux.*",))
    with_aux, without = Toy(nc=3, aux=True), Toy(nc=3)
    assert load_into(without, with_aux.state_dict(), rules).unexpected == ("aux.weight", "aux.bias")
    assert load_into(with_aux, without.state_dict(), rules).missing == ("aux.weight", "aux.bias")


def test_optional_keys_and_integer_counters_may_be_missing():
    state = Toy(nc=3).state_dict()
    del state["norm.num_batches_tracked"], state["box.bias"]
    report = load_into(Toy(nc=3), state, Checkpoint(optional=("box.bias",)))
    assert report.missing == ("norm.num_batches_tracked", "box.bias")
    assert "box.bias" in refused(Toy(nc=3), state)


def test_a_counter_too_many_is_no_fault():
    state = {**Toy(nc=3).state_dict(), "frozen.num_batches_tracked": torch.zeros((), dtype=torch.int64)}
    assert load_into(Toy(nc=3), state, PLAIN).unexpected == ("frozen.num_batches_tracked",)


def test_half_precision_files_become_the_dtype_of_the_network():
    state = {k: v.half() if v.is_floating_point() else v for k, v in Toy(nc=3).state_dict().items()}
    target = Toy(nc=3)
    load_into(target, state, PLAIN)
    assert all(p.dtype == torch.float32 for p in target.parameters())
    assert torch.equal(target.box.weight, state["box.weight"].float())


def test_shapes_that_differ_by_axes_of_length_one_fit():
    state = Toy(nc=3).state_dict()
    state["box.weight"] = state["box.weight"].reshape(4, 4)
    state["norm.weight"] = torch.arange(4.0).reshape(4, 1, 1)
    target = Toy(nc=3)
    assert load_into(target, state, PLAIN).reshaped == ("norm.weight", "box.weight")
    assert target.norm.weight.tolist() == [0, 1, 2, 3]


def test_names_that_share_a_tensor_in_the_network_need_be_stored_once():
    source, target = Tied(), Tied()
    state = {k: v for k, v in source.state_dict().items() if not k.startswith("heads.1.")}
    del state["steps"]
    load_into(target, state, PLAIN)
    assert torch.equal(target.heads[1].weight, source.heads[0].weight)
    other = {k.replace("heads.0.", "heads.1."): v for k, v in state.items()}
    load_into(target, other, PLAIN)
    assert torch.equal(target.heads[0].weight, source.heads[0].weight)


def test_tied_names_of_the_sheet_stand_for_each_other():
    state = Toy(nc=3).state_dict()
    state["decoder.box.weight"] = state.pop("box.weight")
    target = Toy(nc=3)
    report = load_into(target, state, Checkpoint(tied=(("decoder.box.weight", "box.weight"),)))
    assert torch.equal(target.box.weight, state["decoder.box.weight"])
    assert report.unexpected == ("decoder.box.weight",)


def test_an_adapter_converts_a_foreign_layout():
    source = Toy(nc=3).state_dict()
    state = {k: v for k, v in source.items() if k not in ("box.weight", "cls.weight")}
    state["fused"] = torch.cat([source["box.weight"], source["cls.weight"]])
    target = Toy(nc=3)
    load_into(target, state, Checkpoint(adapter="checkpoint_toys:Adapter"))
    assert torch.equal(target.cls.weight, source["cls.weight"])
    assert "fused" in state


def test_an_adapter_that_cannot_be_imported_names_who_declared_it():
    for adapter in ("no_such_module", "checkpoint_toys:Nothing"):
        with pytest.raises(PluginError, match="cannot be imported"):
            load_into(Toy(nc=3), Toy(nc=3).state_dict(), Checkpoint(adapter=adapter))


def test_a_load_in_part_is_asked_for_and_logged(caplog):
    state = Toy(nc=3).state_dict()
    del state["box.weight"]
    state["old"] = torch.ones(1)
    with caplog.at_level(logging.WARNING, "libreyolo"):
        report = load_into(Toy(nc=3), state, PLAIN, strict=False)
    assert report.missing == ("box.weight",)
    assert "1 keys are missing (box.weight), 1 are left over (old)" in caplog.text
    with pytest.raises(CheckpointError, match="another shape"):
        load_into(Toy(nc=4), state, PLAIN, strict=False)


def test_eighty_classes_into_three_keep_all_but_the_class_head_and_say_so(caplog):
    source, target = Toy(nc=80), Toy(nc=3)
    with caplog.at_level(logging.INFO, "libreyolo"):
        fresh = fit_classes(target, source.state_dict(), PLAIN, old_nc=80, new_nc=3)
    assert fresh == ["cls.weight", "cls.bias", "embed.weight"]
    assert target.cls.bias.tolist() == pytest.approx([-4.6] * 3)
    assert target.embed.weight.eq(0.5).all()
    for key, value in source.state_dict().items():
        if key not in fresh:
            assert torch.equal(value, target.state_dict()[key]), key
    assert "initialised afresh for 3 classes (the weights have 80)" in caplog.text
    assert "cls.weight, cls.bias, embed.weight" in caplog.text


def test_an_adapter_can_keep_the_rows_of_classes_it_knows():
    source, target = Toy(nc=80), Toy(nc=3)
    names = ["new", "class_7", "class_2"]
    fresh = fit_classes(
        target,
        source.state_dict(),
        family(adapter="checkpoint_toys:Adapter").checkpoint,
        old_nc=80,
        new_nc=3,
        names=names,
    )
    assert fresh == ["cls.weight", "embed.weight"]
    assert target.cls.bias.tolist() == pytest.approx([-4.6, source.cls.bias[7].item(), source.cls.bias[2].item()])


def test_another_width_is_not_taken_for_another_class_count():
    source, target = Toy(nc=80, width=8), Toy(nc=3, width=4)
    with pytest.raises(CheckpointError, match="have another shape.*apart from the change from 80 to 3 classes"):
        fit_classes(target, source.state_dict(), PLAIN, old_nc=80, new_nc=3)


def test_missing_keys_stay_an_error_when_the_class_count_changes():
    state = Toy(nc=80).state_dict()
    del state["box.weight"]
    with pytest.raises(CheckpointError, match=r"1 keys are missing \(box.weight\)"):
        fit_classes(Toy(nc=3), state, PLAIN, old_nc=80, new_nc=3)
