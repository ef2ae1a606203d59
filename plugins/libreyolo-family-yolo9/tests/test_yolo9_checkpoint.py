"""Files: the original project's layout, tower widths, relatives, and where a letterboxed photo sits."""

import pytest
import torch

from libreyolo_core.api import LibreYOLO
from libreyolo_core.checkpoint import File, fit_classes, identify, load_into
from libreyolo_core.errors import CheckpointError
from libreyolo_family_yolo9.plugin import YOLO9 as FAMILY

LAYERS = (
    ("backbone", {"conv0": 0, "conv1": 1, "elan1": 2, "down2": 3, "elan2": 4, "down3": 5, "elan3": 6, "down4": 7}),
    ("backbone", {"elan4": 8, "spp": 9}),
    ("neck", {"elan_up1": 12, "elan_up2": 15, "down1": 16, "elan_down1": 18, "down2": 19, "elan_down2": 21}),
    ("aux", {"spp": 23, "elan_a4": 26, "elan_a3": 29}),
)
NUMBERS = {f"{part}.{name}": number for part, names in LAYERS for name, number in names.items()}
NUMBERS |= {"head": 22, "aux_head": 30}


def original(key):
    """The name of a native key in the original project's files."""
    layer = next(name for name in NUMBERS if key.startswith(name + "."))
    parts = key.removeprefix(layer + ".").split(".")
    if layer.endswith("head"):
        branch, level, *rest = parts
        parts = ["heads", level, {"cv2": "anchor_conv", "cv3": "class_conv"}[branch], *rest]
    else:
        parts[0] = parts[0].replace("cv", "conv")
        if "elan" in layer and parts[1] == "0":
            parts[2] = parts[2].replace("cv", "conv")
            if parts[2] == "m":
                parts[2], parts[4] = "bottleneck", parts[4].replace("cv", "conv")
    return ".".join([str(NUMBERS[layer]), *parts])


def as_original(network):
    """A file of the original project with the weights of ``network``."""
    state = {original(k): v for k, v in network.state_dict().items()}
    return state | {
        f"{n}.heads.{i}.anc2vec.anc2vec.weight": torch.zeros(1, 16, 1, 1, 1) for n in (22, 30) for i in range(3)
    }


def identified(state, filename="some.pt"):
    return identify(File(state, content=state), {"yolo9": FAMILY}, filename)


def test_names_inside_layers_are_what_the_original_calls_them():
    for native, name in {
        "backbone.conv0.conv.weight": "0.conv.weight",
        "backbone.down2.cv.bn.bias": "3.conv.bn.bias",
        "backbone.elan2.cv2.0.cv3.conv.weight": "4.conv2.0.conv3.conv.weight",
        "backbone.elan2.cv2.0.m.1.cv1.conv2.bn.weight": "4.conv2.0.bottleneck.1.conv1.conv2.bn.weight",
        "backbone.elan2.cv3.1.conv.weight": "4.conv3.1.conv.weight",
        "head.cv3.2.2.bias": "22.heads.2.class_conv.2.bias",
    }.items():
        assert original(native) == name


@pytest.mark.parametrize("size", ["t", "s", "m", "c"])
def test_files_of_the_original_project_are_recognised_at_every_size(build, size):
    with torch.device("meta"):
        network = build(size, nc=7, auxiliary=True)
    found = identified(as_original(network))
    assert (found.family, found.size, found.nc) == ("yolo9", size, 7)
    assert found.sheet(FAMILY).input.side == "centre"


@pytest.mark.parametrize("auxiliary", [True, False])
def test_files_of_the_original_project_load_with_no_key_missing_or_left_over(build, auxiliary):
    network, other = build("t", nc=5, auxiliary=True), build("t", nc=5, auxiliary=auxiliary)
    for p in network.parameters():
        torch.nn.init.normal_(p)
    report = load_into(other, as_original(network), FAMILY.checkpoint)
    assert report.missing == ()
    assert all("anc2vec" in k or k.startswith("aux") for k in report.unexpected)
    wanted = network.state_dict()
    assert all(torch.equal(v, wanted[k]) for k, v in other.state_dict().items())


def test_a_centred_file_stays_centred_when_it_is_saved_again(build, tmp_path):
    torch.save(as_original(build("t", nc=2)), tmp_path / "v9-t.pt")
    model = LibreYOLO(tmp_path / "v9-t.pt", device="cpu")
    assert model.sheet.input.side == "centre"
    assert LibreYOLO(model.save(tmp_path / "again.safetensors"), device="cpu").sheet.input.side == "centre"
    plain = LibreYOLO("yolo9-t", pretrained=False, nc=2, device="cpu")
    assert LibreYOLO(plain.save(tmp_path / "plain.pt"), device="cpu").sheet.input.side == "top-left"


def test_older_names_of_the_head_load_and_the_projection_is_dropped(build):
    network, other = build("t", nc=3), build("t", nc=3)
    state = {k.replace("head.", "detect."): v for k, v in network.state_dict().items()}
    state["detect.dfl.conv.weight"] = torch.arange(16.0).reshape(1, 16, 1, 1)
    assert identified(state).size == "t"
    assert load_into(other, state, FAMILY.checkpoint).missing == ()


@pytest.mark.parametrize("nc, width", [(1, 64), (90, 90), (365, 100), (80, 128)])
def test_the_width_of_the_class_towers_is_taken_from_the_file(build, nc, width):
    with torch.device("meta"):
        state = build("t", nc=nc, class_width=width).state_dict()
    found = identified(state)
    assert (found.size, found.nc, found.sheet(FAMILY).model["class_width"]) == ("t", nc, width)


def test_another_class_count_keeps_the_towers_and_the_boxes(build):
    old, new = build("t", nc=80), build("t", nc=3)
    for p in old.parameters():
        torch.nn.init.normal_(p)
    fresh = fit_classes(new, old.state_dict(), FAMILY.checkpoint, old_nc=80, new_nc=3)
    assert set(fresh) == {f"head.cv3.{i}.2.{kind}" for i in range(3) for kind in ("weight", "bias")}
    before = old.state_dict()
    assert all(torch.equal(v, before[k]) for k, v in new.state_dict().items() if k not in fresh)


@pytest.mark.parametrize("key", ["head.one2one_cv2.0.0.conv.weight", "neck.elan_up3.cv1.conv.weight"])
def test_files_of_networks_derived_from_this_one_are_not_claimed(build, key):
    state = build("t", nc=3).state_dict() | {key: torch.zeros(1)}
    with pytest.raises(CheckpointError, match="no installed family recognises"):
        identified(state)
