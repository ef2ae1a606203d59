"""Degraded and clean images are paired by name, judged by stated rules, and cropped and mirrored together."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from libreyolo_core.augment import Affine, Flip, FlipVertical, Hsv, Mosaic, RandomCrop, RandomResizedCrop, Rotate90
from libreyolo_core.data.batch import SampleRequest
from libreyolo_core.data.catalogue import load_data
from libreyolo_core.data.dataset import RestoreSet, collate_restore
from libreyolo_core.data.decode import read_image
from libreyolo_core.data.fit import extend, fit_image, native_size
from libreyolo_core.data.labels import FAULTS
from libreyolo_core.data.loader import eval_loader, train_loader
from libreyolo_core.data.pairs import PairNames, clean_path
from libreyolo_core.data.scan import check, scan_restore
from libreyolo_core.errors import ConfigError, DataError
from libreyolo_core.family import Input

RULE = Input(fit="native", border="reflect", multiple=16)
RECIPE = (RandomCrop(), Flip(p=0.5), FlipVertical(p=0.5), Rotate90(p=1.0))
SIZES = ((40, 64), (90, 50), (33, 47), (20, 70), (64, 64))


def picture(height: int, width: int, seed: int) -> np.ndarray:
    """Noise, so that every place of it is another."""
    return np.random.default_rng(seed).integers(0, 226, (height, width, 3), dtype=np.uint8)


@pytest.fixture
def pair_set(tmp_path):
    """``make(sizes, ...)``: inputs, targets that are the inputs plus 30 grey values, and a YAML; returns its path."""

    def make(sizes=SIZES, inputs="inputs", targets="targets", suffix="", folder="set", **extra):
        root = tmp_path / folder
        for split in ("train", "val"):
            for i, size in enumerate(sizes):
                for name, image in (
                    (f"{inputs}/{i:03d}", picture(*size, i)),
                    (f"{targets}/{i:03d}{suffix}", picture(*size, i) + 30),
                ):
                    path = root / split / f"{name}.png"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    Image.fromarray(image).save(path)
        path = root / "data.yaml"
        path.write_text(yaml.safe_dump({"path": ".", "train": "train", "val": "val", **extra}, sort_keys=False))
        return path

    return make


def scan(path, split="train", **options):
    return scan_restore(load_data(path, "restore"), split, **options)


def kinds(found) -> dict[str, int]:
    return {k: n for k, n in found.counts.items() if k in FAULTS}


def refused(path, *parts: str) -> None:
    with pytest.raises(DataError) as caught:
        load_data(path, "restore")
    assert "\n" not in str(caught.value) and all(p in str(caught.value) for p in parts), str(caught.value)


# pairs


def test_a_yaml_needs_neither_names_nor_keys(pair_set):
    spec = load_data(pair_set(), "restore")
    found = scan_restore(spec, "train")
    assert spec.names == found.names == {0: "image"} and spec.splits["train"].kind == "pairs"
    assert [Path(r.path).name for r in found.images] == [f"{i:03d}.png" for i in range(5)]
    assert found.images[1].layers == {"clean": str(spec.path / "train/targets/001.png")}
    assert found.images[1].size == (90, 50) and found.counts == {"images": 5} and found.per_class == {0: 5}
    assert found.report() == "train: 5 images"


def test_the_inputs_folder_itself_may_be_the_split(pair_set):
    path = pair_set(train="train/inputs")
    assert scan(path).counts == {"images": 5}


def test_a_folder_needs_no_yaml(pair_set):
    path = pair_set()
    path.unlink()
    spec = load_data(path.parent, "restore")
    assert spec.names == {0: "image"} and set(spec.splits) == {"train", "val"}
    assert scan_restore(spec, "val").counts == {"images": 5}
    (path.parent / "train").rename(path.parent / "training")
    refused(path.parent, "no folder train", "train/inputs/ and targets/")


@pytest.mark.parametrize("key", ["target_dir", "targets_dir"])
def test_folders_and_the_end_of_clean_names_can_be_chosen(pair_set, key):
    path = pair_set(
        inputs="a/blur",
        targets="a/sharp",
        suffix="_gt",
        **{"input_dir": "blur", key: "sharp", "target_stem_suffix": "_gt"},
    )
    found = scan(path)
    assert kinds(found) == {} and found.images[0].layers["clean"].endswith("/train/a/sharp/000_gt.png")


def test_a_clean_image_may_have_another_ending(tmp_path):
    (tmp_path / "targets").mkdir()
    (tmp_path / "targets" / "a.PNG").write_bytes(b"x")
    (tmp_path / "targets" / "b.webp").write_bytes(b"x")
    assert clean_path(f"{tmp_path}/inputs/a.PNG", PairNames()) == f"{tmp_path}/targets/a.PNG"
    assert clean_path(f"{tmp_path}/inputs/b.jpg", PairNames()) == f"{tmp_path}/targets/b.webp"
    assert clean_path(f"{tmp_path}/inputs/c.jpg", PairNames()) == f"{tmp_path}/targets/c.jpg"
    assert clean_path("/inputs/x/targets/c.jpg", PairNames()) is None
    assert clean_path("/x/c.jpg", PairNames()) is None


@pytest.mark.parametrize(
    ("extra", "parts"),
    [
        ({"names": ["a", "b"]}, ["names has 2 classes", "Leave names out"]),
        ({"nc": 2}, ["names has 2 classes"]),
        ({"input_dir": "a/b"}, ["input_dir is 'a/b'", "line"]),
        ({"input_dir": "x", "target_dir": "x"}, ["both in folders 'x'"]),
        ({"target_dir": "x", "targets_dir": "y"}, ["both given"]),
        ({"target_stem_suffix": ["a"]}, ["target_stem_suffix is ['a']"]),
        ({"inputs_dir": "x"}, ["'inputs_dir'", "Did you mean 'input_dir'?"]),
    ],
)
def test_mistakes_in_the_yaml_name_value_line_and_mend(pair_set, extra, parts):
    refused(pair_set(**extra), *parts)


def test_what_is_wrong_with_a_pair_is_counted_listed_and_left_out(pair_set):
    path = pair_set()
    root = path.parent / "train"
    (root / "targets/001.png").unlink()
    Image.fromarray(picture(33, 40, 0)).save(root / "targets/002.png")
    (root / "targets/003.png").write_bytes(b"no image")
    (root / "inputs/004.png").write_bytes((root / "inputs/004.png").read_bytes()[:99])
    found = scan(path)
    assert kinds(found) == {
        "image unreadable": 1,
        "size mismatch": 1,
        "clean image missing": 1,
        "clean image unreadable": 1,
    }
    assert [Path(r.path).name for r in found.images] == ["000.png"]
    assert "clean 40 x 33, image 47 x 33 as shown" in found.report() and "targets/001.png" in found.report()
    with pytest.raises(DataError, match="4 faults and strict=True"):
        scan(path, strict=True)
    plain = check(path, "restore")
    assert plain["usable"] and plain["splits"]["train"]["per_class"] == {"image": 1}


def test_nothing_usable_is_an_error_that_shows_where_it_looked(pair_set):
    path = pair_set()
    (path.parent / "train/targets").rename(path.parent / "train/clean")
    with pytest.raises(DataError, match=r"train/targets/000.png \(clean image missing\)") as caught:
        scan(path)
    assert str(caught.value).count("/targets/00") == 3
    (path.parent / "train/inputs").rename(path.parent / "train/degraded")
    with pytest.raises(DataError, match=r"no usable image; looked for .*/train/inputs/\*"):
        scan(path)


def test_a_kept_scan_is_the_scan(pair_set):
    path = pair_set()
    first, again = scan(path), scan(path)
    assert [(r.path, r.size, r.layers) for r in first.images] == [(r.path, r.size, r.layers) for r in again.images]
    assert again.reading == PairNames()
    (path.parent / "train/targets/001.png").unlink()
    assert kinds(scan(path)) == {"clean image missing": 1}


# fitting


def test_a_batch_is_as_large_as_its_largest_sides_rounded_up():
    assert native_size(RULE, [(5, 33), (17, 2)]) == (32, 48)
    assert native_size(RULE, [(16, 32)]) == (16, 32)


def test_a_photo_of_its_own_size_is_mirrored_beyond_its_edge():
    photo = picture(5, 7, 0)
    image, placement = fit_image(photo, RULE, (16, 16))
    assert placement.scale == (1, 1) and placement.offset == (0, 0) and placement.photo == (5, 7)
    assert np.array_equal(image[:5, :7], photo)
    # 9 columns do not fit into a mirror of 7, nor 11 rows into one of 5: the last pixel is repeated
    assert (image[:5, 7:] == photo[:, -1:]).all() and (image[5:, :7] == photo[-1:]).all()
    image, _ = fit_image(photo, RULE, (9, 13))
    assert np.array_equal(image, np.pad(photo, ((0, 4), (0, 6), (0, 0)), mode="reflect"))
    one, _ = fit_image(photo[:1], RULE, (1, 13))
    assert np.array_equal(one, np.pad(photo[:1], ((0, 0), (0, 6), (0, 0)), mode="reflect"))
    constant, _ = fit_image(photo, Input(fit="native", pad=7), (9, 13))
    assert (constant[5:] == 7).all() and (constant[:, 7:] == 7).all()
    ids = np.ones((5, 7), np.uint8)
    assert (extend(ids, (9, 13), RULE)[5:] == 255).all()


def test_what_is_larger_than_the_input_needs_a_crop():
    with pytest.raises(ConfigError, match="7 x 5 pixels does not fit.*RandomCrop"):
        fit_image(picture(5, 7, 0), RULE, (16, 6))


def test_an_unknown_border_is_an_error():
    with pytest.raises(ConfigError, match="input.border is 'reflec'.*reflect"):
        fit_image(picture(5, 7, 0), Input(fit="native", border="reflec"), (16, 16))


# samples


@pytest.mark.parametrize(
    "augment",
    [
        RECIPE,
        (RandomCrop(), Affine(rotate=20, translate=0.2)),
        (RandomResizedCrop(), Flip(p=1)),
        (Mosaic(),),
        (),
    ],
    ids=["recipe", "affine", "resized", "mosaic", "none"],
)
def test_the_clean_image_moves_with_the_degraded_one(pair_set, augment):
    data = RestoreSet(scan(pair_set()), RULE, seed=3)
    for i in range(len(data)):
        for epoch in range(3):
            sample = data[SampleRequest(i, epoch, (48, 48), augment)]
            clean, image = sample.layers["clean"].astype(int), sample.image.astype(int)
            assert clean.shape == image.shape == ((48, 48, 3) if augment else (*SIZES[i], 3))
            shift = clean - image
            if augment and augment[0].name in ("mosaic", "affine") or len(augment) == 2:
                assert (np.abs(shift - 30) <= 1).mean() + (shift == 0).mean() > 0.8  # padding is alike in both
            else:
                assert (shift == 30).all()


def test_colour_changes_reach_the_degraded_image_alone(pair_set):
    data = RestoreSet(scan(pair_set()), RULE)
    plain, jittered = (
        data[SampleRequest(0, 0, (32, 32), (*a, RandomCrop()))] for a in ((Flip(p=0),), (Hsv(value=90, each=1),))
    )
    assert np.array_equal(plain.layers["clean"], jittered.layers["clean"])
    assert not np.array_equal(plain.image, jittered.image)


def test_a_crop_is_a_part_of_the_photo_anywhere_in_it(pair_set):
    data = RestoreSet(scan(pair_set()), RULE)
    photo = read_image(str(data.paths[1]))  # 90 x 50
    seen = set()
    for epoch in range(60):
        crop = data[SampleRequest(1, epoch, (32, 32), (RandomCrop(),))].image
        ys, xs = np.where((photo[:59, :19] == crop[0, 0]).all(axis=2))
        (place,) = [(y, x) for y, x in zip(ys, xs) if np.array_equal(photo[y : y + 32, x : x + 32], crop)]
        seen.add(place)
    rows, columns = zip(*seen)
    assert min(rows) < 8 and max(rows) > 50 and min(columns) < 4 and max(columns) > 14


def test_a_small_photo_is_mirrored_before_it_is_cropped(pair_set):
    data = RestoreSet(scan(pair_set()), RULE)
    sample = data[SampleRequest(2, 0, (48, 48), (RandomCrop(),))]  # 33 x 47
    photo = read_image(str(data.paths[2]))
    assert np.array_equal(sample.image, np.pad(photo, ((0, 15), (0, 1), (0, 0)), mode="reflect"))


def test_evaluation_pads_to_the_batch_and_says_where_the_photo_is(pair_set):
    data = RestoreSet(scan(pair_set()), RULE)
    with eval_loader(data, functools.partial(collate_restore, rule=RULE), batch=3, size=(48, 48)) as loader:
        first, second = list(loader)
    assert first.images.shape == first.targets.images.shape == (3, 3, 96, 64)
    assert second.images.shape == (2, 3, 64, 80)  # 20 x 70 and 64 x 64
    for i, placement in enumerate(first.placements):
        h, w = placement.photo
        assert placement == fit_image(np.zeros((h, w, 3), np.uint8), RULE, (96, 64))[1] and (h, w) == SIZES[i]
        assert np.array_equal(first.images[i, :, :h, :w].permute(1, 2, 0).numpy(), picture(h, w, i))
        assert np.array_equal(first.targets.images[i, :, :h, :w].permute(1, 2, 0).numpy(), picture(h, w, i) + 30)


def test_channels_of_input_and_target_are_in_the_order_of_the_network(pair_set):
    data = RestoreSet(scan(pair_set()), RULE)
    samples = [data[SampleRequest(i, 0, (32, 32), RECIPE)] for i in range(2)]
    rgb, bgr = (collate_restore(samples, Input(fit="native", colour=c)) for c in ("rgb", "bgr"))
    assert torch.equal(rgb.images, bgr.images.flip(1)) and torch.equal(rgb.targets.images, bgr.targets.images.flip(1))
    assert rgb.placements == []


def test_a_batch_is_the_same_whatever_the_workers_and_the_cache(pair_set):
    found = scan(pair_set())

    def batches(augment, workers=0, cache=""):
        data = RestoreSet(found, RULE, seed=2, cache=cache)
        with train_loader(
            data, functools.partial(collate_restore, rule=RULE), batch=2, seed=3, workers=workers
        ) as loader:
            return list(loader.epoch(1, size=(32, 32), augment=augment))

    for augment in (RECIPE, ()):
        wanted = batches(augment)
        for options in ({"cache": "ram"}, {"cache": "disk"}, {"workers": 2}, {"cache": "ram", "workers": 1}):
            for a, b in zip(wanted, batches(augment, **options), strict=True):
                assert a.indices == b.indices and torch.equal(a.images, b.images)
                assert torch.equal(a.targets.images, b.targets.images) and torch.equal(a.draw, b.draw)


def test_a_pair_that_goes_bad_is_replaced_and_named(pair_set):
    found = scan(pair_set())
    bad = found.images[2].layers["clean"]
    Path(bad).unlink()
    sample = RestoreSet(found, RULE)[SampleRequest(2, 0, (32, 32), RECIPE)]
    assert sample.index != 2 and sample.extra["unreadable"][0][0] == bad
    assert (sample.layers["clean"].astype(int) - sample.image == 30).all()
