"""Running statistics of a run from scratch begin with those of its first batch."""

import torch

from libreyolo_core import LibreYOLO
from libreyolo_core.engine.callbacks import Callback
from libreyolo_core.engine.optimizer import whole_statistics
from toy_family import ToyNetwork


def test_one_batch_in_full_replaces_the_start_and_the_momentum_comes_back():
    network = ToyNetwork(nc=3).train()
    norm = network.stem[1]
    norm.momentum = 0.03
    images = torch.rand(2, 3, 64, 64)
    with whole_statistics(network):
        network.region(images)
    x = network.stem[0](images)
    torch.testing.assert_close(norm.running_mean, x.mean((0, 2, 3)))
    torch.testing.assert_close(norm.running_var, x.var((0, 2, 3)))
    assert norm.momentum == 0.03


def test_frozen_norms_and_fine_tunes_keep_theirs(toy, boxes_set, tmp_path):
    seen = []

    class Look(Callback):
        def on_step(self, run):
            if run.updates == 1:
                seen.append((run.from_scratch, run.network.stem[1].running_var.clone()))

    given = {
        "data": str(boxes_set), "epochs": 1, "workers": 0, "plots": False, "project": str(tmp_path), "lr0": 0.0001,
        "callbacks": (Look(),), "device": "cpu", "mosaic_prob": 0,
    }  # fmt: skip
    model = LibreYOLO("toy-s", pretrained=False, device="cpu")
    done = model.train(**given)
    LibreYOLO(done.best, device="cpu").train(**given)
    assert [s for s, _ in seen] == [True, False]
    fresh = seen[0][1]
    assert not torch.allclose(fresh, 0.9 * torch.ones_like(fresh), atol=0.05)  # 0.9 of the start would be left at 0.1
