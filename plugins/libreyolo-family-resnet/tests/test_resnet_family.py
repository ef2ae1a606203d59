"""What is special about ResNet: keys, sizes, spot values, cross-entropy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from libreyolo_core.checkpoint import File, Found, identify, load_into, payload, read, write
from libreyolo_core.losses import LossTerms, Ranks, Step
from libreyolo_core.targets import ClassTargets
from libreyolo_core.testing.counting import OperationCounter
from libreyolo_core.testing.deterministic import image_for, sample_indices, tensor_for
from libreyolo_family_resnet.loss import CrossEntropy
from libreyolo_family_resnet.network import ResNetClassifier
from libreyolo_family_resnet.plugin import RESNET

REFERENCE = json.loads((Path(__file__).parent / "reference" / "resnet-18.json").read_text())
SHEET = RESNET.tasks["classify"]
MEAN = torch.tensor(SHEET.input.mean).reshape(1, 3, 1, 1)
STD = torch.tensor(SHEET.input.std).reshape(1, 3, 1, 1)


def build(size: str, nc: int = 1000) -> ResNetClassifier:
    return ResNetClassifier(nc=nc, **SHEET.for_size(size).model)


def deterministic_state(network: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {
        k: torch.zeros((), dtype=torch.int64)
        if k.endswith("num_batches_tracked")
        else torch.from_numpy(tensor_for(k, tuple(v.shape)))
        for k, v in network.state_dict().items()
    }


def normalised(seed: str, shape: tuple[int, int, int, int]) -> torch.Tensor:
    return (torch.from_numpy(image_for(seed, shape)) - MEAN) / STD


@pytest.fixture(scope="module")
def reference_network(tmp_path_factory) -> ResNetClassifier:
    """Size 18 filled through a bare checkpoint file with the reference's key names."""
    keys = {k: () if v == "scalar" else tuple(map(int, v.split("x"))) for k, v in REFERENCE["keys"].items()}
    state = {
        k: torch.zeros((), dtype=torch.int64) if not s and "tracked" in k else torch.from_numpy(tensor_for(k, s))
        for k, s in keys.items()
    }
    path = tmp_path_factory.mktemp("resnet") / "some_weights.pth"
    torch.save(state, path)
    found = identify(read(path), {"resnet": RESNET})
    assert (found.family, found.task, found.size, found.nc) == ("resnet", "classify", "18", 1000)
    network = build(found.size, found.nc)
    report = load_into(network, found.state, RESNET.checkpoint)
    assert report.missing == report.unexpected == report.reshaped == ()
    return network.eval()


@pytest.mark.parametrize("size", ["18", "34", "50", "101", "152"])
def test_every_size_has_the_stated_number_of_parameters(size):
    with torch.device("meta"):
        network = build(size)
    assert sum(p.numel() for p in network.parameters()) == SHEET.sizes[size].params


def test_keys_are_exactly_those_of_the_reference():
    with torch.device("meta"):
        network = build("18")
    assert list(network.state_dict()) == list(REFERENCE["keys"])


def test_eval_logits_equal_the_reference(reference_network):
    recorded = REFERENCE["canonical"]["canonical.logits"]
    with torch.no_grad():
        outputs = reference_network(normalised("resnet", (2, 3, 128, 128)))
        logits = reference_network.predictions(outputs, (128, 128)).logits.numpy()
    tolerance = 1e-4 * recorded["absmax"]  # what the reference files ask for; kernels differ by about 3e-7
    picked = logits.reshape(-1)[sample_indices("canonical.logits", logits.size)]
    assert np.abs(picked - recorded["samples"]).max() <= tolerance
    assert abs(np.abs(logits).max() - recorded["absmax"]) <= tolerance
    assert abs(logits.mean() - recorded["mean"]) <= tolerance
    assert abs(logits.std() - recorded["std"]) <= tolerance


@pytest.mark.parametrize(
    ("size", "mean", "std", "picked"),
    [
        ("18", -0.003732, 0.431385, (0.60392, 0.17159, -0.80154, -0.25055)),
        ("50", 0.039169, 0.723320, (0.68068, -0.68848, -0.48259, -0.06400)),
    ],
)
def test_spot_values_of_two_sizes(size, mean, std, picked):
    network = build(size)
    network.load_state_dict(deterministic_state(network))
    with torch.no_grad():
        logits = network.eval()(torch.from_numpy(image_for(f"resnet{size}", (1, 3, 96, 96))))[0]  # not normalised
    # the recorded values have five or six decimals
    assert logits.mean().item() == pytest.approx(mean, abs=2e-5)
    assert logits.std().item() == pytest.approx(std, abs=2e-5)
    assert logits[[0, 333, 500, 999]].tolist() == pytest.approx(picked, abs=5e-5)


def test_training_loss_and_gradient_equal_the_reference(reference_network):
    recorded = REFERENCE["loss"]
    network = build("18")
    network.load_state_dict(reference_network.state_dict())
    terms = training_terms(network.train(), recorded["targets"]["tensor"])
    terms.total.backward()
    # 1e-3 relative is the reference's own bound
    assert terms.named()["ce"].item() == pytest.approx(recorded["components"]["loss_ce"], rel=1e-3)
    norms = {k: p.grad.norm().item() for k, p in network.named_parameters()}
    assert np.sqrt(sum(n * n for n in norms.values())) == pytest.approx(recorded["gradient"]["total_l2_norm"], rel=1e-3)
    for key, value in recorded["gradient"]["l2_norm_by_parameter"].items():
        assert norms[key] == pytest.approx(value, rel=1e-3), key


def training_terms(network: ResNetClassifier, labels: list[int]) -> LossTerms:
    outputs = network(normalised("resnet", (2, 3, 128, 128)))
    return CrossEntropy(network)(outputs, ClassTargets(torch.tensor(labels)), Step())


def test_a_training_step_dispatches_no_more_operations_than_the_reference(reference_network):
    counts = REFERENCE["loss"]["aten_ops"]["all"]
    network = build("18").train()
    images = normalised("resnet", (2, 3, 128, 128))
    targets = ClassTargets(torch.tensor([3, 721]))
    loss = CrossEntropy(network)
    loss(network(images), targets, Step()).total.backward()  # builds whatever is cached
    network.zero_grad()
    with OperationCounter() as counter:
        loss(network(images), targets, Step()).total.backward()
    assert counter.without_views <= counts["without_views"]
    assert counter.total <= counts["total"]
    assert counter.host_sync == 0


def test_soft_rows_of_one_class_give_the_loss_of_hard_labels():
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 4, 2, 2])
    hard = CrossEntropy(None)(logits, ClassTargets(labels), Step()).total
    soft = CrossEntropy(None)(logits, ClassTargets(F.one_hot(labels, 5).float()), Step()).total
    assert soft.item() == pytest.approx(hard.item(), rel=1e-6)  # another order of summation


class HalfOfTwo(Ranks):
    """One of two ranks; the other one holds ``others`` samples."""

    size = 2

    def __init__(self, others: int) -> None:
        self.others = others

    def sum(self, value):
        return value + self.others


def test_two_uneven_ranks_give_the_mean_over_all_samples():
    logits = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([0, 1, 2, 1, 0])
    whole = CrossEntropy(None)(logits, ClassTargets(labels), Step()).total
    shards = [
        CrossEntropy(None)(logits[part], ClassTargets(labels[part]), Step(ranks=HalfOfTwo(others))).total
        for part, others in ((slice(0, 2), 3), (slice(2, 5), 2))
    ]
    assert (sum(shards) / 2).item() == pytest.approx(whole.item(), rel=1e-6)  # gradients are averaged over ranks


def test_loss_of_half_precision_logits_is_computed_in_float32():
    logits = torch.tensor([[0.0, 300.0]], dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        total = CrossEntropy(None)(logits, ClassTargets(torch.tensor([0])), Step()).total
    assert total.dtype == torch.float32
    assert total.item() == 300.0


def test_size_152_is_recognised_by_its_block_counts():
    with torch.device("meta"):
        state = build("152", nc=7).state_dict()
    state = {k: torch.zeros((), dtype=v.dtype).expand(v.shape) for k, v in state.items()}  # shapes without the memory
    found = identify(File(state, content=state), {"resnet": RESNET}, "mine.pth")
    assert (found.size, found.nc, found.names[6]) == ("152", 7, "class_6")


def test_a_backbone_inside_another_model_is_not_claimed():
    from libreyolo_core.errors import CheckpointError

    state = {f"backbone.{k}": v for k, v in build("18", nc=2).state_dict().items()}
    with pytest.raises(CheckpointError, match="no installed family recognises"):
        identify(File(state, content=state), {"resnet": RESNET}, "detector.pth")


def test_files_of_schema_1_0_keep_their_class_names(tmp_path):
    network = build("18", nc=2)
    content = payload(
        network.state_dict(),
        family="resnet",
        size="18",
        task="classify",
        nc=2,
        names={0: "tree", 1: "no tree"},
        imgsz=96,
    )
    found: Found = identify(read(write(tmp_path / "mine.pt", content)), {"resnet": RESNET})
    assert (found.size, found.nc, found.imgsz, dict(found.names)) == ("18", 2, 96, {0: "tree", 1: "no tree"})


@pytest.mark.parametrize("size", ["18", "50"])
def test_the_deployed_form_gives_the_same_logits(size):
    network = build(size, nc=10).eval()
    network.load_state_dict(deterministic_state(network))
    images = normalised("deploy", (1, 3, 64, 64))
    with torch.no_grad():
        before = network(images)
        after = network.deploy()(images)
    assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in network.modules())
    assert (after - before).abs().max() <= 1e-4 * before.abs().max()  # folding changes the rounding of every layer


def test_an_optimizer_step_with_the_recipe_starts_at_rate_zero_and_decays_weights_only():
    recipe = SHEET.recipe
    assert (recipe.schedule.start, recipe.schedule.power, recipe.schedule.warmup) == (0.0, 2, 1)
    (group,) = recipe.groups
    assert (group.of, group.decay, recipe.optimizer.decay) == ("norm|bias", 0.0, 1e-4)
