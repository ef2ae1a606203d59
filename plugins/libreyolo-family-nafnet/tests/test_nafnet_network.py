"""The network: recorded values, sizes and layouts, weight files, padding, the deployed form."""

import copy

import pytest
import torch

from libreyolo_core.checkpoint import File, identify, load_into
from libreyolo_core.errors import CheckpointError
from libreyolo_core.testing.counting import OperationCounter
from libreyolo_core.testing.deterministic import image_for
from libreyolo_family_nafnet.network import ChannelNorm, NAFNet
from libreyolo_family_nafnet.plugin import NAFNET as FAMILY

FAMILIES = {"nafnet": FAMILY}
GOPRO = {"encoder": (1, 1, 1, 28), "middle": 1, "decoder": (1, 1, 1, 1)}
SIDD = {"encoder": (2, 2, 4, 8), "middle": 12, "decoder": (2, 2, 2, 2)}
LAYOUTS = [(32, GOPRO, 17_111_907), (64, GOPRO, 67_888_835), (32, SIDD, 29_159_715), (64, SIDD, 115_982_915)]


def shapes_only(width: int, layout: dict) -> dict[str, torch.Tensor]:
    """A state dict of tensors that nobody fills, which costs no memory."""
    with torch.device("meta"):
        state = NAFNet(width=width, **layout).state_dict()
    return {k: torch.empty(v.shape) for k, v in state.items()}


@pytest.mark.parametrize("width, layout, parameters", LAYOUTS)
def test_every_layout_has_the_stated_parameters_and_keys(width, layout, parameters):
    state = shapes_only(width, layout)
    assert sum(v.numel() for v in state.values()) == parameters
    assert len(state) == 664


def test_keys_are_those_of_the_reference_in_its_order(reference):
    state = shapes_only(32, GOPRO)
    assert {k: tuple(v.shape) for k, v in state.items()} == reference.shapes()
    assert list(state) == list(reference.shapes())


@pytest.mark.parametrize(
    "local, mean, std, picked",
    [
        (True, 0.694875, 1.697134, (-0.77016, 0.43026, -0.22833, -0.38280)),
        (False, 0.694847, 1.694414, (-0.77641, 0.43957, -0.23746, -0.38604)),
    ],
)
def test_spot_values_of_local_and_global_pooling(filled, local, mean, std, picked):
    network = copy.deepcopy(filled).eval()
    network.configure(local=local)
    with torch.no_grad():
        out = network(torch.from_numpy(image_for("nafnets", (1, 3, 90, 410)))).flatten().double()
    n = out.numel()
    assert out.mean().item() == pytest.approx(mean, abs=2e-6)  # the recorded values have five or six decimals
    assert out.std().item() == pytest.approx(std, abs=2e-6)
    assert out[[0, n // 3, n // 2, n - 1]].tolist() == pytest.approx(picked, abs=2e-5)


def test_evaluation_dispatches_no_more_operations_than_the_reference(filled, reference):
    network = copy.deepcopy(filled).eval()
    with torch.no_grad(), OperationCounter() as counter:
        network(torch.rand(1, 3, 16, 400))  # wider than the window, so that every pool is local
    recorded = reference.content["aten_ops_eval_forward"]
    assert counter.total <= recorded["total"]
    assert counter.by_name["cumsum"] == 2 * 36
    assert counter.host_sync == 0


def test_a_fresh_network_is_its_outer_convolutions_alone():
    torch.manual_seed(0)
    network = NAFNet(width=8, encoder=(1,), middle=1, decoder=(1,)).eval()
    image = torch.rand(1, 3, 8, 8)
    x = network.intro(image)
    plain = network.ending(network.ups[0](network.downs[0](x)) + x) + image
    assert torch.allclose(network(image), plain, atol=1e-6)  # the scales of all blocks start at zero


def test_channel_norm_normalises_every_pixel_over_its_channels():
    norm, x = ChannelNorm(6), torch.randn(2, 6, 5, 4)
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    centred = x - x.mean(1, keepdim=True)
    expected = centred / torch.sqrt(centred.square().mean(1, keepdim=True) + 1e-6)
    expected = expected * norm.weight.reshape(-1, 1, 1) + norm.bias.reshape(-1, 1, 1)
    assert torch.allclose(norm(x), expected, atol=1e-5)  # float32, another order of summation


def test_channel_norm_keeps_its_variance_in_float32_under_autocast():
    x = 300.0 + torch.randn(1, 16, 4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = ChannelNorm(16)(x)
    assert torch.allclose(found.float(), ChannelNorm(16)(x), atol=0.05)  # in bfloat16 300 has steps of 2


@pytest.mark.parametrize("size", [(16, 16), (17, 30), (1, 1), (5, 64)])
@pytest.mark.parametrize("training", [True, False])
def test_any_size_comes_back_as_it_went_in(tiny, size, training):
    network = tiny().train(training)
    assert network(torch.rand(2, 3, *size)).shape == (2, 3, *size)


def test_odd_sizes_are_padded_with_zeros_at_the_bottom_and_the_right(tiny):
    network, image = tiny().eval(), torch.rand(1, 3, 6, 9)
    padded = torch.zeros(1, 3, 8, 12)
    padded[..., :6, :9] = image
    assert torch.equal(network(image), network(padded)[..., :6, :9])


def test_the_deployed_form_gives_the_same_image(filled):
    network = copy.deepcopy(filled).eval()
    image = torch.from_numpy(image_for("deploy", (1, 3, 32, 48)))
    with torch.no_grad():
        before = network(image)
        with OperationCounter() as counter:
            after = network.deploy().deploy()(image)
    assert counter.by_name["addcmul"] == 0
    assert (after - before).abs().max() <= 1e-4 * before.abs().max()  # folding changes the rounding of every layer


@pytest.mark.parametrize("width, layout, parameters", LAYOUTS)
@pytest.mark.parametrize("container", ["", "params", "params_ema"])
def test_files_tell_their_layout(width, layout, parameters, container):
    state = shapes_only(width, layout)
    content = {container: state} if container else state
    found = identify(File(state, content=content), FAMILIES, "mine.pth")
    assert (found.family, found.task, found.nc) == ("nafnet", "restore", 1)
    assert found.size == {32: "s", 64: "l"}[width]
    assert found.model == layout
    assert found.sheet(FAMILY).model == {"width": width, **layout, "window": 384, "local": True}


@pytest.mark.parametrize("name, variant", [("LibreNAFNets-restore.pt", ""), ("LibreNAFNets-restore-sidd.pt", "sidd")])
def test_the_layout_comes_from_the_tensors_whatever_the_name_says(name, variant):
    for layout in (GOPRO, SIDD):
        state = shapes_only(32, layout)
        found = identify(File(state, content=state), FAMILIES, name)
        assert found.variant == variant
        assert found.sheet(FAMILY).model["encoder"] == layout["encoder"]
        assert found.sheet(FAMILY).model["middle"] == layout["middle"]


def test_a_saved_model_of_the_other_layout_comes_back_as_that():
    state = shapes_only(32, SIDD)
    meta = {"model_family": "nafnet", "size": "s", "task": "restore", "nc": 1, "names": {0: "image"}}
    found = identify(File(state, content=state, meta=meta), FAMILIES, "best.pt")
    with torch.device("meta"):
        network = NAFNet(nc=found.nc, **found.sheet(FAMILY).model)
    assert {k: v.shape for k, v in network.state_dict().items()} == {k: v.shape for k, v in state.items()}


def test_a_width_that_is_no_size_is_an_error_naming_the_sizes():
    state = shapes_only(16, GOPRO)
    with pytest.raises(CheckpointError, match=r"fits none of its sizes.*Known sizes: l, s"):
        identify(File(state, content=state), FAMILIES, "mine.pth")


def test_another_unet_is_not_claimed():
    state = {k: v for k, v in shapes_only(32, GOPRO).items() if not k.startswith("decoders.2")}
    with pytest.raises(CheckpointError, match="no installed family recognises"):
        identify(File(state, content=state), FAMILIES, "mine.pth")


def test_weights_load_with_no_key_left_over(filled, sheet):
    network = NAFNet(**sheet.for_size("s").model)
    report = load_into(network, filled.state_dict(), FAMILY.checkpoint)
    assert report.missing == report.unexpected == report.reshaped == ()


def test_a_released_name_of_the_variant_builds_its_layout_without_weights():
    from libreyolo_core import LibreYOLO

    plain, sidd = (
        LibreYOLO(name, pretrained=False, device="cpu")
        for name in ("LibreNAFNets-restore", "LibreNAFNets-restore-sidd")
    )
    counts = [sum(p.numel() for p in model.network.parameters()) for model in (plain, sidd)]
    assert counts == [17_111_907, 29_159_715]


def test_an_export_with_open_sides_is_refused(tmp_path):
    from libreyolo_core import LibreYOLO
    from libreyolo_core.errors import ConfigError

    model = LibreYOLO("nafnet-s", pretrained=False, device="cpu")
    with pytest.raises(ConfigError, match="dynamic_imgsz=True is impossible.*imgsz=512"):
        model.export(path=str(tmp_path / "x.onnx"), imgsz=32, dynamic_imgsz=True)
