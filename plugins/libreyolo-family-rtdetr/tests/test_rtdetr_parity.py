"""Same weights, same numbers as the published implementation (reference/rtdetr-r18.json)."""

import numpy as np
import pytest
import torch
from rtdetr_cases import REFERENCE, network, reference_images, reference_state, reference_targets, shape_of, terms_of

from libreyolo_core.testing.deterministic import sample_indices


@pytest.fixture(scope="module")
def filled():
    net = network(nc=REFERENCE["classes"])
    state = net.state_dict()
    given = reference_state()
    assert set(state) == set(given)
    assert {k: tuple(v.shape) for k, v in state.items()} == {k: shape_of(s) for k, s in REFERENCE["keys"].items()}
    net.load_state_dict(given)
    return net


def assert_array(name, array, expected):
    array = array.numpy()
    assert list(array.shape) == expected["shape"]
    limit = 1e-4 * expected["absmax"]
    picked = array.reshape(-1)[sample_indices(name, array.size)]
    np.testing.assert_allclose(picked, expected["samples"], atol=limit, rtol=0)
    for statistic in (("mean", array.mean()), ("std", array.std()), ("absmax", np.abs(array).max())):
        assert statistic[1] == pytest.approx(expected[statistic[0]], abs=limit)


def test_evaluation_outputs_equal_the_reference(filled):
    filled.eval()
    with torch.no_grad():
        outputs = filled(reference_images())
    found = filled.predictions(outputs, (128, 128))
    assert_array("canonical.boxes", found.boxes, REFERENCE["canonical"]["canonical.boxes"])
    assert_array("canonical.scores", found.scores, REFERENCE["canonical"]["canonical.scores"])
    best = found.scores.amax(-1).sort(1, descending=True).values
    assert_array("canonical.best_score_sorted", best, REFERENCE["canonical"]["canonical.best_score_sorted"])
    for key in ("pred_logits", "pred_boxes"):
        assert_array(f"raw.{key}", outputs[key], REFERENCE["raw"][f"raw.{key}"])


def test_every_recorded_row_is_among_the_queries_of_its_image(filled):
    filled.eval()
    with torch.no_grad():
        found = filled.predictions(filled(reference_images()), (128, 128))
    for row in REFERENCE["canonical_rows"]:
        boxes, scores = found.boxes[row["image"]], found.scores[row["image"]]
        distance = (boxes - torch.tensor(row["box"])).abs().amax(1)
        query = int(distance.argmin())
        assert distance[query] < 1e-4 * 137  # absmax of the boxes
        assert int(scores[query].argmax()) == row["best_class"]
        for index, score in row["scores"].items():
            assert scores[query, int(index)].item() == pytest.approx(score, abs=1e-4)


def test_loss_terms_and_gradients_equal_the_reference(filled):
    filled.train()
    filled.zero_grad(set_to_none=True)
    terms = terms_of(filled, reference_images(), reference_targets(), None)
    expected = REFERENCE["loss"]
    # the file's rule: 1e-3, or 20 times the measured conditioning
    limit = max(1e-3, 20 * expected["conditioning"]["worst_component"])
    named = terms.named()
    assert len(named) == len(expected["components"]) - 1
    for name, value in expected["components"].items():
        got = terms.total if name == "total_loss" else named[name.removeprefix("loss_")]
        assert got.item() == pytest.approx(value, rel=limit), name
    terms.total.backward()
    grads = {name: p.grad for name, p in filled.named_parameters()}
    total = torch.stack([g.norm() for g in grads.values()]).norm().item()
    assert total == pytest.approx(expected["gradient"]["total_l2_norm"], rel=1e-3)
    for name, value in expected["gradient"]["l2_norm_by_parameter"].items():
        assert grads[name].norm().item() == pytest.approx(value, rel=2e-3), name
