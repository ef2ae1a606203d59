"""What prediction returns: one ``Results`` per photo."""

from __future__ import annotations

import copy
import csv
import io
import json
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from libreyolo_core.errors import UsageError
from libreyolo_core.result_fields import Array, Boxes, Points, Probs

__all__ = ["Boxes", "Points", "Probs", "Results", "ResultsList"]

log = logging.getLogger("libreyolo")


class Results:
    """What a model found in one photo. Fields that the task does not set are ``None``.

    Args:
        orig_img: uint8 [H, W, 3], BGR, as OpenCV has it.
        path: where the photo came from.
        names: class names by index.
        boxes: detect.
        probs: classify.
        semantic_mask: semantic, int64 [H, W], the class of each pixel of the photo.
        restored: restore, uint8 [H', W', 3], BGR.
        points: point.
        speed: milliseconds per image: ``preprocess``, ``inference``, ``postprocess``.
        category_ids: class index to the id of the COCO JSON that the classes came from.
        frame: number of the frame in a video, counted from 0.
        save_dir: the run folder that ``predict`` wrote this result into, "" when it wrote none.
    """

    def __init__(
        self,
        orig_img: np.ndarray,
        path: str,
        names: dict[int, str],
        *,
        boxes: Boxes | None = None,
        probs: Probs | None = None,
        semantic_mask: Array | None = None,
        restored: np.ndarray | None = None,
        points: Points | None = None,
        speed: dict[str, float] | None = None,
        category_ids: dict[int, int] | None = None,
        frame: int | None = None,
        save_dir: str = "",
    ) -> None:
        self.orig_img, self.path, self.names = orig_img, path, names
        self.orig_shape: tuple[int, int] = (int(orig_img.shape[0]), int(orig_img.shape[1]))
        self.boxes, self.probs, self.points = boxes, probs, points
        self.semantic_mask, self.restored = semantic_mask, restored
        self.speed: dict[str, float] = dict(speed or {})
        self.category_ids, self.frame, self.save_dir = category_ids, frame, save_dir

    def __len__(self) -> int:
        """Detections or points; 1 for the other tasks."""
        rows = self._rows()
        return 1 if rows is None else len(rows)

    def __getitem__(self, index: Any) -> Results:
        """The same photo with some of its detections or points, by integer, slice, mask or list."""
        if self._rows() is None:
            return self
        boxes = None if self.boxes is None else self.boxes[index]
        return self._with(boxes=boxes, points=None if self.points is None else self.points[index])

    def __iter__(self) -> Iterator[Results]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        set_fields = [
            k for k in ("boxes", "probs", "semantic_mask", "restored", "points") if getattr(self, k) is not None
        ]
        h, w = self.orig_shape
        return f"Results({self.path!r}, {w} x {h} pixels, {', '.join(set_fields)}: {self.verbose()})"

    def _rows(self) -> Boxes | Points | None:
        return self.boxes if self.boxes is not None else self.points

    def _with(self, **changed: Any) -> Results:
        other = copy.copy(self)
        vars(other).update(changed)
        return other

    def to(self, *args: Any, **kwargs: Any) -> Results:
        """A copy with all tensors moved or converted as ``torch.Tensor.to`` does."""
        mask = None if self.semantic_mask is None else torch.as_tensor(self.semantic_mask).to(*args, **kwargs)
        moved = {
            k: None if (f := getattr(self, k)) is None else f.to(*args, **kwargs) for k in ("boxes", "probs", "points")
        }
        return self._with(semantic_mask=mask, **moved)

    def cpu(self) -> Results:
        """A copy with all tensors on the CPU."""
        mask = self.semantic_mask.cpu() if isinstance(self.semantic_mask, Tensor) else self.semantic_mask
        moved = {k: None if (f := getattr(self, k)) is None else f.cpu() for k in ("boxes", "probs", "points")}
        return self._with(semantic_mask=mask, **moved)

    def numpy(self) -> Results:
        """A copy with numpy arrays in place of tensors."""
        mask = self.semantic_mask.cpu().numpy() if isinstance(self.semantic_mask, Tensor) else self.semantic_mask
        moved = {k: None if (f := getattr(self, k)) is None else f.numpy() for k in ("boxes", "probs", "points")}
        return self._with(semantic_mask=mask, **moved)

    def plot(
        self,
        *,
        conf: bool = True,
        labels: bool = True,
        line_width: int | None = None,
        font_size: int | None = None,
        img: np.ndarray | None = None,
    ) -> np.ndarray:
        """The photo with what was found, BGR uint8 of the photo's size (the restored image for restoration).

        Args:
            conf: write confidences.
            labels: write class names.
            line_width, font_size: in pixels; by default they suit the photo's size. The former is the radius of points.
            img: draw on this BGR image of the photo's size instead.
        """
        from libreyolo_core.pictures import boxes as drawing
        from libreyolo_core.pictures.masks import blend_mask

        if self.restored is not None:
            return np.array(self.restored)
        canvas = np.ascontiguousarray((self.orig_img if img is None else img)[..., ::-1])  # colours are chosen in RGB
        if self.semantic_mask is not None:
            canvas = blend_mask(canvas, np.asarray(_host(self.semantic_mask)))
            canvas = self._mask_legend(canvas, font_size) if labels else canvas
        if self.probs is not None:
            canvas = self._write_probs(canvas, font_size)
        rows = self._rows()
        if rows is not None:
            texts, colours = self._texts(rows, conf, labels)
            if self.points is not None:
                at = np.asarray(_host(self.points.xy))
                canvas = drawing.draw_points(canvas, at, texts, colours, radius=line_width, size=font_size)
            if self.boxes is not None:
                corners = np.asarray(_host(self.boxes.xyxy))
                canvas = drawing.draw_boxes(canvas, corners, texts, colours, line=line_width, size=font_size)
        return np.ascontiguousarray(canvas[..., ::-1])

    def _texts(self, rows: Boxes | Points, conf: bool, labels: bool) -> tuple[list[str], list[tuple[int, int, int]]]:
        from libreyolo_core.pictures.palette import class_colour

        classes = [int(c) for c in _host(rows.cls)]
        scores = [f"{float(s):.2f}" for s in _host(rows.conf)]
        texts = [
            " ".join(([self._name(c)] if labels else []) + ([s] if conf else []))
            for c, s in zip(classes, scores, strict=True)
        ]
        return texts, [class_colour(c) for c in classes]

    def _mask_legend(self, canvas: np.ndarray, font_size: int | None) -> np.ndarray:
        """The classes that occur, the largest first."""
        from libreyolo_core.pictures.boxes import font_px
        from libreyolo_core.pictures.masks import legend_panel
        from libreyolo_core.pictures.palette import class_colour

        rows = sorted(self.summary(), key=lambda row: -row["pixels"])
        entries = [(class_colour(row["class"]), row["name"]) for row in rows]
        return legend_panel(canvas, entries, font_size or font_px(*self.orig_shape))

    def _write_probs(self, canvas: np.ndarray, font_size: int | None) -> np.ndarray:
        from libreyolo_core.pictures.boxes import font_px, write_lines

        assert self.probs is not None
        best = zip(self.probs.top5, _host(self.probs.top5conf), strict=True)
        lines = [f"{self._name(c)} {float(p):.2f}" for c, p in best]
        return write_lines(canvas, lines, font_size or font_px(*self.orig_shape))

    def save(self, filename: str | Path = "", **plot_options: Any) -> str:
        """Write ``plot()``; the format follows the suffix. Returns the path.

        Args:
            filename: default: ``<photo's name>_result.jpg`` in the working directory, for a restored image ``.png``. As
                JPEG or WebP a restored image is written in their best quality.
        """
        from libreyolo_core.pictures.grid import write

        suffix = ".jpg" if self.restored is None else ".png"
        path = Path(filename) if filename else Path(f"{Path(self.path).stem or 'image'}_result{suffix}")
        return str(write(self.plot(**plot_options)[..., ::-1], path, best=self.restored is not None))

    def show(self, **plot_options: Any) -> None:
        """Open ``plot()`` in the system's picture viewer; a log line says so when there is none."""
        from PIL import Image, ImageShow

        shown = ImageShow.show(Image.fromarray(self.plot(**plot_options)[..., ::-1].copy()), title=Path(self.path).name)
        if not shown:
            log.warning("No picture viewer was found, nothing is shown. Use save() and open the file.")

    def summary(self, *, normalize: bool = False, decimals: int = 5) -> list[dict[str, Any]]:
        """One dictionary per detection, point, class of pixels or (of the five best) class; of a restored image its
        width and height.

        Args:
            normalize: coordinates as shares of the photo's sides instead of pixels.
            decimals: digits after the point.
        """
        if self.probs is not None:
            best = zip(self.probs.top5, _host(self.probs.top5conf), strict=True)
            return [{**self._class(c), "confidence": round(float(p), decimals)} for c, p in best]
        if self.boxes is not None:
            corners = _host(self.boxes.xyxyn if normalize else self.boxes.xyxy)
            return [
                {
                    **self._class(int(c)),
                    "confidence": round(float(s), decimals),
                    "box": {k: round(float(v), decimals) for k, v in zip(("x1", "y1", "x2", "y2"), box, strict=True)},
                }
                for box, s, c in zip(corners, _host(self.boxes.conf), _host(self.boxes.cls), strict=True)
            ]
        if self.points is not None:
            at = _host(self.points.xyn if normalize else self.points.xy)
            return [
                {
                    **self._class(int(c)),
                    "confidence": round(float(s), decimals),
                    "point": {"x": round(float(xy[0]), decimals), "y": round(float(xy[1]), decimals)},
                }
                for xy, s, c in zip(at, _host(self.points.conf), _host(self.points.cls), strict=True)
            ]
        if self.semantic_mask is not None:
            found, pixels = np.unique(np.asarray(_host(self.semantic_mask)), return_counts=True)
            area = pixels.sum()
            rows = zip(found.tolist(), pixels.tolist(), strict=True)
            return [{**self._class(c), "pixels": n, "share": round(n / area, decimals)} for c, n in rows if c != 255]
        if self.restored is not None:
            return [{"width": int(self.restored.shape[1]), "height": int(self.restored.shape[0])}]
        return []

    def _class(self, c: int) -> dict[str, Any]:
        row: dict[str, Any] = {"class": c, "name": self._name(c)}
        if self.category_ids is not None and c in self.category_ids:
            row["category_id"] = self.category_ids[c]
        return row

    def _name(self, c: int) -> str:
        return self.names.get(c, f"class_{c}")

    def to_dict(self, *, normalize: bool = False, decimals: int = 5) -> dict[str, Any]:
        """Everything that was found, ready for JSON: ``path``, ``orig_shape`` [h, w], ``speed``, and ``detections``,
        ``classes``, ``points``, ``segments`` or ``restored_shape`` by task."""
        out: dict[str, Any] = {"path": str(self.path), "orig_shape": list(self.orig_shape)}
        if self.frame is not None:
            out["frame"] = self.frame
        out["speed"] = {k: round(float(v), 3) for k, v in self.speed.items()}
        rows = self.summary(normalize=normalize, decimals=decimals)
        if self.restored is not None:
            out["restored_shape"] = list(self.restored.shape[:2])
        for name, value in (("detections", self.boxes), ("classes", self.probs), ("points", self.points)):
            if value is not None:
                out[name] = rows
        if self.semantic_mask is not None:
            out["segments"] = rows
        return out

    def to_json(self, *, normalize: bool = False, decimals: int = 5, indent: int | None = 2) -> str:
        """``to_dict`` as a JSON document."""
        content = self.to_dict(normalize=normalize, decimals=decimals)
        return json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False)

    def to_csv(self, *, normalize: bool = False, decimals: int = 5) -> str:
        """``summary`` as CSV with a header; the columns stand even when nothing was found."""
        place = ["x1", "y1", "x2", "y2"] if self.boxes is not None else ["x", "y"] if self.points is not None else []
        head = ["class", "name"] + (["category_id"] if self.category_ids is not None else [])
        head += ["pixels", "share"] if self.semantic_mask is not None else ["confidence", *place]
        head = ["width", "height"] if self.restored is not None else head
        text = io.StringIO()
        table = csv.DictWriter(text, head, lineterminator="\n", restval="")
        table.writeheader()
        for row in self.summary(normalize=normalize, decimals=decimals):
            inner = {**row.pop("box", {}), **row.pop("point", {})}
            table.writerow({**row, **inner})
        return text.getvalue()

    def verbose(self) -> str:
        """What was found in a few words, e.g. ``3 tree, 1 house``."""
        if self.probs is not None:
            best = zip(self.probs.top5, _host(self.probs.top5conf), strict=True)
            return ", ".join(f"{self._name(c)} {float(p):.2f}" for c, p in best)
        found = self._rows()
        if found is not None:
            counts = Counter(int(c) for c in _host(found.cls))
            return ", ".join(f"{n} {self._name(c)}" for c, n in counts.most_common()) or "nothing found"
        if self.semantic_mask is not None:
            shares = sorted(self.summary(decimals=2), key=lambda r: -r["pixels"])[:5]
            return ", ".join(f"{r['name']} {r['share']:.0%}" for r in shares) or "nothing found"
        if self.restored is not None:
            return f"restored to {self.restored.shape[1]} x {self.restored.shape[0]}"
        return "nothing found"

    def to_supervision(self) -> Any:
        """``supervision.Detections`` (or ``supervision.Classifications``).

        Raises:
            UsageError: the library is not installed, or the task has no counterpart there.
        """
        try:
            import supervision
        except ImportError as error:
            raise UsageError(
                "The package 'supervision' is not installed",
                where="to_supervision()",
                mend="Run: pip install supervision.",
            ) from error
        if self.probs is not None:
            order = np.array(self.probs.top5)
            return supervision.Classifications(class_id=order, confidence=np.asarray(_host(self.probs.top5conf)))
        if self.boxes is None:
            raise UsageError(
                "These results hold neither boxes nor class probabilities",
                where="to_supervision()",
                mend="Use to_dict() for other tasks.",
            )
        classes = np.asarray(_host(self.boxes.cls)).astype(int)
        return supervision.Detections(
            xyxy=np.asarray(_host(self.boxes.xyxy), dtype=np.float32),
            confidence=np.asarray(_host(self.boxes.conf), dtype=np.float32),
            class_id=classes,
            data={"class_name": np.array([self._name(int(c)) for c in classes], dtype=object)},
        )


class ResultsList(list[Results]):
    """Results of several photos. A list of one answers for its only member, so that ``model("a.jpg").boxes`` works
    as well as ``model("a.jpg")[0].boxes``."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not (hasattr(Results, name) or (self and name in vars(self[0]))):
            raise AttributeError(f"a list of results has no attribute {name!r}")
        if len(self) != 1:
            raise AttributeError(f"these are the results of {len(self)} photos; use results[i].{name} or a loop")
        return getattr(self[0], name)


def _host(values: Array) -> Array:
    return values.detach().cpu() if isinstance(values, Tensor) else values
