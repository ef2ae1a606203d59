"""The decoder of RT-DETR: choose queries among the maps' cells, then refine their boxes layer by layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from libreyolo_core.targets import BoxTargets
from libreyolo_kit_detr.decoder import DecoderLayer
from libreyolo_kit_detr.layers import MLP, ConvNorm
from libreyolo_kit_detr.queries import LOGIT_EPS
from libreyolo_kit_detr.query_decoder import QueryDecoder
from libreyolo_kit_detr.transformer import to_tokens

DIM = 256
LEVELS = 3


class Layers(nn.Module):
    """Holds the decoder layers under the name that checkpoints use."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(DIM) for _ in range(count))


class RTDETRDecoder(QueryDecoder):
    """Query selection, denoising queries, decoder layers and their heads.

    Args:
        nc: number of classes. ``c_in``: channels of the maps.
        layers, eval_layer, queries, denoising: see ``RTDETR``.
    """

    def __init__(self, nc: int, c_in: int, *, layers: int, eval_layer: int, queries: int, denoising: int) -> None:
        super().__init__(nc, queries=queries, denoising=denoising)
        self.eval_layer = eval_layer % layers
        self.input_proj = nn.ModuleList(ConvNorm(c_in, DIM, 1) for _ in range(LEVELS))
        self.decoder = Layers(layers)
        self.denoising_class_embed = nn.Embedding(nc + 1, DIM, padding_idx=nc)
        self.query_pos_head = MLP(4, 2 * DIM, DIM, 2)
        self.enc_output = nn.Sequential(nn.Linear(DIM, DIM), nn.LayerNorm(DIM))
        self.enc_score_head = nn.Linear(DIM, nc)
        self.enc_bbox_head = MLP(DIM, DIM, 4, 3)
        self.dec_score_head = nn.ModuleList(nn.Linear(DIM, nc) for _ in range(layers))
        self.dec_bbox_head = nn.ModuleList(MLP(DIM, DIM, 4, 3) for _ in range(layers))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Boxes start at their references, scores at their prior."""
        for head in (self.enc_bbox_head, *self.dec_bbox_head):
            nn.init.zeros_(head.layers[-1].weight)
            nn.init.zeros_(head.layers[-1].bias)
        for linear in (self.enc_output[0], *self.query_pos_head.layers):
            nn.init.xavier_uniform_(linear.weight)
        self.reset_scores()

    def forward(
        self,
        maps: list[Tensor],
        image_size: tuple[int, int],
        targets: BoxTargets | None = None,
        draw: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Detect.

        Args:
            maps: float [N, C, h, w] of strides 8, 16, 32. ``image_size``: (height, width) of the input in pixels.
            targets, draw: true boxes and random keys, for denoising queries while training.

        Returns:
            In evaluation ``pred_logits`` [N, Q, nc] and ``pred_boxes`` float32 [N, Q, 4], cx cy w h as shares of the
            image. While training what ``libreyolo_kit_detr.SetCriterion`` documents. An input with fewer cells than
            queries has as many queries as cells.
        """
        memory, shapes = self.project(maps)
        content, reference, chosen = self.select(memory, shapes)  # [N, Q, C], [N, Q, 4]
        if not self.training:
            return self.refine(content, reference, memory, shapes)

        start = self.with_denoising(content, reference, image_size, targets, draw)
        outputs = {} if start.truth is None else {"truth": start.truth}
        logits, boxes = self.refine_all(
            start.content, start.reference, memory, shapes, start.may_attend
        )  # [L, N, D + Q, ...]
        for name, layers, first in (("logits", logits, chosen[0]), ("boxes", boxes, chosen[1].sigmoid())):
            noisy_part, part = layers.split((start.noisy, layers.shape[2] - start.noisy), 2)
            outputs[name] = torch.cat((part[-1:], part[:-1], first[None]))  # final layer, earlier layers, encoder
            if start.noisy:
                outputs["dn_" + name] = noisy_part
        return outputs

    def project(self, maps: list[Tensor]) -> tuple[Tensor, list[tuple[int, int]]]:
        """All cells of all maps, [N, S, C], and the maps' (height, width)."""
        projected = [project(x) for project, x in zip(self.input_proj, maps, strict=True)]
        return torch.cat([to_tokens(x) for x in projected], 1), [(x.shape[2], x.shape[3]) for x in projected]

    def refine(self, x: Tensor, reference: Tensor, memory: Tensor, shapes: list[tuple[int, int]]) -> dict[str, Tensor]:
        """The answer of the evaluation layer, computing nothing beyond it."""
        boxes = reference.sigmoid()
        for index, layer in enumerate(self.decoder.layers[: self.eval_layer + 1]):
            x = layer(x, self.query_pos_head(boxes), boxes, memory, shapes)
            boxes = (self.dec_bbox_head[index](x) + boxes.logit(eps=LOGIT_EPS)).sigmoid()
        return {"pred_logits": self.dec_score_head[self.eval_layer](x), "pred_boxes": boxes}

    def refine_all(
        self,
        x: Tensor,
        reference: Tensor,
        memory: Tensor,
        shapes: list[tuple[int, int]],
        may_attend: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Class logits [L, N, Q, nc] and boxes [L, N, Q, 4] of every layer.

        A layer starts from the detached boxes of the one before; the box it reports starts from the same values with
        their gradient, so that its loss also teaches the layer before ("look forward twice", DINO, section 3.5).
        """
        boxes = reference.sigmoid()
        contents, deltas, starts = [], [], []
        for layer, head in zip(self.decoder.layers, self.dec_bbox_head, strict=True):
            x = layer(x, self.query_pos_head(boxes), boxes, memory, shapes, may_attend)
            contents.append(x)
            deltas.append(head(x).float())
            starts.append(boxes.logit(eps=LOGIT_EPS))
            boxes = (deltas[-1].detach() + starts[-1]).sigmoid()
        logits = torch.stack([head(c) for head, c in zip(self.dec_score_head, contents, strict=True)])
        delta = torch.stack(deltas)
        reached = (delta + torch.stack(starts)).sigmoid()
        linked = (delta[1:] + reached[:-1].logit(eps=LOGIT_EPS)).sigmoid()
        return logits, torch.cat((reached[:1], linked))
