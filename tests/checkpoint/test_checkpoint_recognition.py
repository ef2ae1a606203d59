"""What a weight file belongs to, from its metadata or from its keys and shapes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from checkpoint_toys import SIGNATURE, Toy, family

from libreyolo_core.checkpoint import File, Found, identify, marks, payload
from libreyolo_core.errors import CheckpointError
from libreyolo_core.family import resolve

TOY = {"toy": family()}


def bare(network: torch.nn.Module, **rename: str) -> File:
    state = network.state_dict()
    return File(state, content=state)


def schema(network: torch.nn.Module | None = None, **changes) -> File:
    network = network or Toy(nc=3)
    stored = payload(
        network.state_dict(), family="toy", size="s", task="detect", nc=3, names={0: "a", 1: "b", 2: "c"}, imgsz=96
    )
    stored |= changes
    return File(stored.pop("model"), {k: v for k, v in stored.items() if v is not None})


def refused(file: File, families, filename: str = "x.pt", **said) -> str:
    with pytest.raises(CheckpointError) as caught:
        identify(file, families, filename, **said)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_metadata_is_believed():
    found = identify(schema(), TOY)
    assert (found.family, found.task, found.size, found.nc, found.imgsz) == ("toy", "detect", "s", 3, 96)
    assert found.names == {0: "a", 1: "b", 2: "c"}


def test_a_family_that_is_not_installed_names_the_package_to_install():
    text = refused(schema(model_family="other_one"), TOY)
    assert "belongs to the family 'other_one', which is not installed" in text
    assert "pip install libreyolo-family-other-one" in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"size": "xl"}, "'xl' is no size of Toy"),
        ({"task": "segment"}, "'segment' is no task of Toy"),
        ({"variant": "underwater"}, "'underwater' is no variant of Toy"),
        ({"nc": 4}, "says nc=4 but its class head has 3"),
        ({"nc": -1}, "says nc=-1"),
        ({"nc": True}, "says nc=True"),
        ({"nc": "many"}, "says nc='many'"),
    ],
)
def test_metadata_that_cannot_be_true_is_one_line(changes, said):
    assert said in refused(schema(**changes), TOY)


def test_what_the_user_says_must_agree_with_the_metadata():
    assert "holds the family 'toy', not 'other'" in refused(schema(), TOY, family="other")
    assert "holds the size 's', not 'm'" in refused(schema(), TOY, size="m")
    assert identify(schema(), TOY, size="s", task="detect").size == "s"


def test_what_metadata_leaves_out_is_found_in_the_file():
    found = identify(schema(size=None, nc=None, names=None, imgsz=None, task=None), TOY)
    assert (found.size, found.nc, found.imgsz, found.task) == ("s", 3, 0, "detect")
    assert found.names == {0: "class_0", 1: "class_1", 2: "class_2"}


def test_a_file_marked_with_its_letterbox_overrides_the_sheet():
    found = identify(schema(letterbox_pad="center"), TOY)
    assert found.sheet(TOY["toy"]).input.side == "centre"
    assert identify(schema(letterbox_pad="top-left"), TOY).sheet(TOY["toy"]).input.side == "top-left"
    assert identify(schema(), TOY).set == {}


@pytest.mark.parametrize("side", ["centre", "top-left"])
def test_a_file_carries_the_mark_that_finds_its_letterbox_again(side):
    rule = replace(TOY["toy"].tasks["detect"].input, side=side)
    assert identify(schema(**marks(rule)), TOY).sheet(TOY["toy"]).input.side == side


def test_a_variant_comes_from_metadata_or_from_the_file_name():
    for found in (
        identify(schema(variant="aerial"), TOY),
        identify(schema(weight_variant="aerial"), TOY),
        identify(schema(), TOY, "LibreTOYs-aerial.pt"),
        identify(bare(Toy(nc=3)), TOY, "libretoys-aerial.pt"),
    ):
        assert found.variant == "aerial"
        assert found.sheet(TOY["toy"]).post.max_det == 1500


@pytest.mark.parametrize("size", ["s", "m"])
def test_the_size_of_a_bare_file_is_the_one_whose_keys_and_shapes_fit(size):
    sheet = TOY["toy"].tasks["detect"].for_size(size)
    found = identify(bare(Toy(nc=7, **sheet.model)), TOY, "unnamed.pth")
    assert (found.family, found.size, found.nc, found.names[6]) == ("toy", size, 7, "class_6")


def test_recognising_a_file_draws_no_random_numbers():
    file = bare(Toy(nc=3))
    for network in ("Toy", "Stubborn"):
        before = torch.get_rng_state()
        identify(file, {"toy": family(network=f"checkpoint_toys:{network}")})
        assert torch.equal(before, torch.get_rng_state())


def test_keys_that_no_family_knows_are_an_error_that_shows_them():
    text = refused(File({"a.weight": torch.ones(1), "b": torch.ones(1)}), TOY)
    assert "no installed family recognises its keys (such as a.weight, b; installed families: toy)" in text


def test_a_file_that_fits_no_size_shows_the_nearest():
    network = Toy(nc=3, depth=1)
    state = dict(network.state_dict())
    state["extra.weight"] = torch.ones(1)
    text = refused(File(state, content=state), TOY)
    assert "looks like Toy but fits none of its sizes (nearest is 's': 1 are left over (extra.weight))" in text


def test_the_family_that_asks_for_more_keys_wins():
    larger = family("toyplus", network="checkpoint_toys:Toy", signature=(*SIGNATURE, "aux.weight"))
    larger.tasks["detect"].sizes["s"].options["aux"] = True
    try:
        both = {**TOY, "toyplus": larger}
        assert identify(bare(Toy(nc=3, aux=True)), both, "x.pt").family == "toyplus"
        larger.tasks["detect"].sizes["s"].options["aux"] = False
        assert identify(bare(Toy(nc=3)), both, "x.pt").family == "toy"
    finally:
        larger.tasks["detect"].sizes["s"].options.pop("aux")


def test_two_families_that_fit_equally_are_told_apart_by_the_file_name_or_both_are_named():
    both = {**TOY, "twin": family("twin")}
    assert identify(bare(Toy(nc=3)), both, "LibreTWINs-mine.pt").family == "twin"
    assert identify(bare(Toy(nc=3)), both, "toy_s_coco.pth").family == "toy"
    for ambiguous in ("weights.pth", "toy_twin_s.pth"):
        text = refused(bare(Toy(nc=3)), both, ambiguous)
        assert "fit the families toy and twin" in text
        assert "family=" in text
    assert identify(bare(Toy(nc=3)), both, "weights.pth", family="twin").family == "twin"


def test_an_unknown_family_named_by_the_user_is_one_line():
    assert "Did you mean 'toy'?" in refused(bare(Toy(nc=3)), TOY, family="tov")


def test_sizes_of_equal_shapes_are_told_apart_by_the_file_name_or_by_the_user():
    twins = family()
    sizes = twins.tasks["detect"].sizes
    keep = dict(sizes)
    sizes["t"] = sizes["s"]
    try:
        file = bare(Toy(nc=3))
        text = refused(file, {"toy": twins}, "weights.pth")
        assert "fits the sizes s and t of Toy" in text
        assert identify(file, {"toy": twins}, "LibreTOYt.pt").size == "t"
        assert identify(file, {"toy": twins}, "weights.pth", size="t").size == "t"
    finally:
        sizes.clear()
        sizes.update(keep)


def test_renaming_comes_before_recognition():
    renamed = {"toy": family(rename=((r"^trunk\.", "backbone."), (r"^head\.", "cls.")))}
    state = {k.replace("backbone.", "trunk.").replace("cls.", "head."): v for k, v in Toy(nc=3).state_dict().items()}
    found = identify(File(state, content=state), renamed, "upstream.pth")
    assert (found.size, found.nc) == ("s", 3)
    assert "trunk.0.weight" in found.state


def test_two_keys_that_come_to_share_a_name_are_not_this_familys():
    renamed = {"toy": family(rename=((r"^ema_", ""),))}
    state = dict(Toy(nc=3).state_dict())
    state |= {f"ema_{k}": v for k, v in state.items()}
    assert "no installed family recognises" in refused(File(state, content=state), renamed)


def test_a_family_looks_into_its_own_containers_first():
    plain = Toy(nc=3).state_dict()
    content = {"state_dict": plain, "ema_state_dict": {"something": torch.ones(1)}}
    file = File({"something": torch.ones(1)}, content=content)
    found = identify(file, {"toy": family(containers=("state_dict",))}, "upstream.pth")
    assert set(found.state) == set(plain)


def test_an_adapter_tells_what_only_the_file_knows():
    adapted = {"toy": family(signature=(), adapter="checkpoint_toys:Adapter", classes="")}
    found = identify(bare(Toy(nc=5, width=6)), adapted, "x.pth")
    assert (found.size, found.nc) == ("s", 5)
    sheet = found.sheet(adapted["toy"])
    assert sheet.model["width"] == 6
    assert sheet.post.iou == 0.7
    network = resolve(adapted["toy"].network)(nc=found.nc, **sheet.model)
    assert network.box.weight.shape[1] == 6
    with_metadata = identify(schema(Toy(nc=3, width=6)), adapted)
    assert with_metadata.sheet(adapted["toy"]).model["width"] == 6


def test_an_adapter_that_stumbles_over_a_file_does_not_claim_it():
    adapted = {"toy": family(signature=(), adapter="checkpoint_toys:Adapter", classes="")}
    state = {"box.weight": torch.ones(2, 2)}  # inspect() reads cls.weight too
    assert "no installed family recognises" in refused(File(state, content=state), adapted)


def test_an_adapter_may_be_a_module():
    found = identify(bare(Toy(nc=3)), {"toy": family(adapter="checkpoint_toys")})
    assert found.size == "s"


def test_found_is_what_the_sheet_is_made_of():
    found = Found("toy", "detect", "m", 3, model={"width": 9}, set={"recipe.epochs": 7})
    sheet = found.sheet(TOY["toy"])
    assert sheet.model == {"width": 9, "depth": 2}
    assert sheet.recipe.epochs == 7
