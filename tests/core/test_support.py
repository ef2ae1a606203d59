"""What ``libreyolo families`` and the documentation say about the speed features comes from the sheet."""

from dataclasses import replace

from libreyolo_core.family import Capture, Loss, Precision, Ranks
from libreyolo_core.support import support
from toy_family import FAMILY

TASK = FAMILY.tasks["detect"]


def test_a_family_that_can_do_everything():
    facts = support(replace(TASK, precision=Precision(why="as published"), ranks=Ranks(sync_bn=True)))
    assert facts == {
        "inference capture": "yes",
        "training capture": "yes",
        "full capture": "yes",
        "split point": "network",
        "numerics": "exact: the same numbers",
        "amp": "yes, float16: as published",
        "sync_bn": "yes",
        "spawn": "yes",
        "ranks": "as one process",
    }


def test_every_no_has_its_reason():
    capture = Capture("backbone", numerics="spread", inference_off_reason="it picks queries on the host")
    facts = support(replace(TASK, capture=capture, loss=Loss("toy_family:ToyLoss"), ranks=Ranks(exempt="a maximum")))
    assert facts["inference capture"] == "no: it picks queries on the host"
    assert facts["training capture"] == "yes" and facts["full capture"] == "no: the loss is not static-shaped"
    assert facts["numerics"].startswith("spread") and facts["ranks"] == "exempt: a maximum"
    assert facts["amp"] == "no: too small to gain"


def test_without_a_region_nothing_is_captured():
    facts = support(replace(TASK, capture=Capture(off_reason="it reads the host")))
    for name in ("inference capture", "training capture", "full capture"):
        assert facts[name] == "no: it reads the host"
    assert facts["split point"] == "none: it reads the host" and facts["numerics"] == ""


def test_a_changed_option_leaves_the_loss_static():
    from libreyolo_core.family import with_path

    changed = with_path(TASK, "loss.extra", 1.0)
    assert changed.loss.static and changed.loss.options == {"extra": 1.0}
    assert changed.loss != TASK.loss and Loss("a:B") != Loss("a:B", static=True)
