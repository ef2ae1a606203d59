"""Memory for intermediate pixels."""

import threading

from libreyolo_core.data.scratch import scratch


def test_the_same_use_gets_the_same_memory_and_another_use_other_memory():
    first = scratch("a", (4, 5, 3))
    first.fill(7)
    assert scratch("a", (5, 4, 3)).ctypes.data == first.ctypes.data
    assert scratch("b", (4, 5, 3)).ctypes.data != first.ctypes.data


def test_a_larger_shape_gets_larger_memory():
    scratch("c", (2, 2))
    assert scratch("c", (300, 200)).shape == (300, 200)


def test_threads_do_not_share_memory():
    found = []
    mine = scratch("d", (8, 8))
    thread = threading.Thread(target=lambda: found.append(scratch("d", (8, 8))))
    thread.start()
    thread.join()
    assert found[0].ctypes.data != mine.ctypes.data


def test_a_sample_keeps_its_pixels_when_the_next_one_is_made():
    import libreyolo_data_treecrowns
    from libreyolo_core.augment import Affine, Flip, Hsv, MixUp, Mosaic
    from libreyolo_core.data.batch import SampleRequest
    from libreyolo_core.data.catalogue import load_data
    from libreyolo_core.data.dataset import DetectSet
    from libreyolo_core.data.scan import scan_detect
    from libreyolo_core.family import Input

    photos = DetectSet(scan_detect(load_data(libreyolo_data_treecrowns.path(), "detect"), "val"), Input())
    for recipe in ((Mosaic(), MixUp(p=1.0), Hsv(p=1.0), Flip()), (Mosaic(), Hsv(p=1.0)), (Mosaic(),), (Affine(),)):
        first = photos[SampleRequest(0, 0, (96, 96), recipe)]
        kept = first.image.copy()
        photos[SampleRequest(1, 0, (96, 96), recipe)]
        assert (first.image == kept).all(), recipe
