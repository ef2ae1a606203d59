"""The decoder of D-FINE (Peng et al., 2024, section 4.1 and figure 2), which DEIM and RT-DETRv4 share: choose queries
among the maps' cells, predict an initial box each, then refine the distributions of its edges layer by layer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from libreyolo_core.targets import BoxTargets
from libreyolo_kit_detr import fdr
from libreyolo_kit_detr.decoder import FLOAT16_MAX
from libreyolo_kit_detr.deformable import DeformableSampling, split_heads
from libreyolo_kit_detr.layers import MLP, Activation, ConvNorm, keep_layout
from libreyolo_kit_detr.queries import LOGIT_EPS
from libreyolo_kit_detr.query_decoder import QueryDecoder
from libreyolo_kit_detr.transformer import SelfAttention, to_tokens

POSITION_LIMIT = 10.0
HEADS = 8


class FDRDecoder(QueryDecoder):
    """Query selection, denoising queries, decoder layers and their heads.

    Args:
        nc: number of classes.
        c_in: channels of the maps. ``dim``: channels of the decoder. ``ffn``: width of its feed-forward networks.
        layers: decoder layers.
        points: deformable points in each map, finest map first.
        reg_scale: offsets per width of an initial box, see ``fdr``.
        queries: object queries. ``denoising``: about how many denoising queries to train with, 0 for none.
        act: activation of feed-forward networks, box and position heads.
    """

    def __init__(
        self,
        nc: int,
        c_in: int,
        *,
        dim: int = 256,
        ffn: int = 1024,
        layers: int = 6,
        points: Sequence[int] = (3, 6, 3),
        reg_scale: float = 4.0,
        queries: int = 300,
        denoising: int = 100,
        act: Activation = F.relu,
    ) -> None:
        super().__init__(nc, queries=queries, denoising=denoising, mirror=True)
        self.up = nn.Parameter(torch.tensor([0.5]), requires_grad=False)
        self.reg_scale = nn.Parameter(torch.tensor([float(reg_scale)]), requires_grad=False)
        self.input_proj = nn.ModuleList(ConvNorm(c_in, dim) if c_in != dim else nn.Identity() for _ in points)
        self.decoder = FDRLayers(layers, dim, ffn, points, act)
        self.denoising_class_embed = nn.Embedding(nc + 1, dim, padding_idx=nc)
        self.query_pos_head = MLP(4, 2 * dim, dim, 2, act=act)
        self.enc_output = nn.Sequential(OrderedDict(proj=nn.Linear(dim, dim), norm=nn.LayerNorm(dim)))
        self.enc_score_head = nn.Linear(dim, nc)
        self.enc_bbox_head = MLP(dim, dim, 4, 3, act=act)
        self.dec_score_head = nn.ModuleList(nn.Linear(dim, nc) for _ in range(layers))
        self.pre_bbox_head = MLP(dim, dim, 4, 3, act=act)
        self.dec_bbox_head = nn.ModuleList(MLP(dim, dim, 4 * fdr.BINS, 3, act=act) for _ in range(layers))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Boxes start at their references, distributions flat, scores at their prior."""
        for head in (self.enc_bbox_head, self.pre_bbox_head, *self.dec_bbox_head):
            nn.init.zeros_(head.layers[-1].weight)
            nn.init.zeros_(head.layers[-1].bias)
        for linear in (self.enc_output.proj, *self.query_pos_head.layers):
            nn.init.xavier_uniform_(linear.weight)
        self.reset_scores()

    def forward(
        self,
        maps: Sequence[Tensor],
        image_size: tuple[int, int],
        targets: BoxTargets | None = None,
        draw: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Detect.

        Args:
            maps: float [N, C, h, w], finest first. ``image_size``: (height, width) of the input in pixels.
            targets, draw: true boxes and random keys, for denoising queries while training.

        Returns:
            In evaluation ``pred_logits`` [N, Q, nc] and ``pred_boxes`` float32 [N, Q, 4], cx cy w h as shares of the
            image. While training what ``libreyolo_kit_detr.FDRCriterion`` documents. An input with fewer cells than
            queries has as many queries as cells.
        """
        maps = [keep_layout(project(x)) for project, x in zip(self.input_proj, maps, strict=True)]
        memory = torch.cat([to_tokens(x) for x in maps], 1)  # [N, S, C]
        content, reference, chosen = self.select(memory, [(x.shape[2], x.shape[3]) for x in maps])
        values = [split_heads(x, HEADS) for x in maps]
        bins = fdr.bin_values(self.up, self.reg_scale)
        if not self.training:
            return self.refine(content, reference, values, bins)

        outputs = {"bins": bins, "reg_scale": self.reg_scale.detach()}
        start = self.with_denoising(content, reference, image_size, targets, draw)
        if start.truth is not None:
            outputs["truth"] = start.truth
        refined = self.refine_all(start.content, start.reference, values, bins, start.may_attend)
        for name, sets in refined.items():  # the queries are the axis before the last
            parts = sets.split((start.noisy, sets.shape[-2] - start.noisy), -2)
            outputs[name] = parts[1]
            if start.noisy:
                outputs["dn_" + name] = parts[0]
        outputs["logits"] = torch.cat((outputs["logits"], chosen[0][None]))
        outputs["boxes"] = torch.cat((outputs["boxes"], chosen[1].sigmoid()[None]))
        return outputs

    def position(self, boxes: Tensor) -> Tensor:
        """Position codes [N, Q, C] of reference boxes [N, Q, 4]."""
        return self.query_pos_head(boxes).clamp(-POSITION_LIMIT, POSITION_LIMIT)

    def initial(self, x: Tensor, reference: Tensor) -> Tensor:
        """The box whose edges all layers refine, float32 [N, Q, 4], from the first layer's content."""
        return (self.pre_bbox_head(x).float() + reference.logit(eps=LOGIT_EPS)).sigmoid()

    def refine(self, x: Tensor, reference: Tensor, values: list[Tensor], bins: Tensor) -> dict[str, Tensor]:
        """The answer of the last layer, computing nothing beyond it."""
        boxes = initial = reference.sigmoid()
        before: Tensor | float = 0.0
        corners: Tensor | float = 0.0
        for index, (layer, head) in enumerate(zip(self.decoder.layers, self.dec_bbox_head, strict=True)):
            x = layer(x, self.position(boxes), boxes, values)
            if index == 0:
                initial = self.initial(x, boxes)
            corners = head(x + before if index else x).float() + corners  # [N, Q, 132]
            probabilities = corners.unflatten(-1, (4, fdr.BINS)).softmax(-1)
            boxes = fdr.decode(initial, probabilities, bins, self.reg_scale)
            before = x
        logits = self.dec_score_head[-1](x) + self.decoder.lqe_layers[-1](probabilities)
        return {"pred_logits": logits, "pred_boxes": boxes}

    def refine_all(
        self, x: Tensor, reference: Tensor, values: list[Tensor], bins: Tensor, may_attend: Tensor | None
    ) -> dict[str, Tensor]:
        """What every layer answers: ``logits`` [L + 1, N, Q, nc] and ``boxes`` [L + 1, N, Q, 4] of the final layer, the
        earlier ones and the initial prediction; ``corners`` [L, N, Q, 132] and ``initial`` [N, Q, 4]."""
        boxes = reference.sigmoid()
        contents: list[Tensor] = []
        corners: list[Tensor] = []
        probabilities: list[Tensor] = []
        reached: list[Tensor] = []
        for index, (layer, head) in enumerate(zip(self.decoder.layers, self.dec_bbox_head, strict=True)):
            x = layer(x, self.position(boxes), boxes, values, may_attend)
            if index == 0:
                first = self.initial(x, boxes)
                initial = first.detach()
            delta = head(x + contents[-1].detach() if contents else x).float()
            # Gradients of later layers reach earlier distributions, not earlier contents or boxes.
            corners.append(delta + corners[-1] if corners else delta)
            probabilities.append(corners[-1].unflatten(-1, (4, fdr.BINS)).softmax(-1))
            reached.append(fdr.decode(initial, probabilities[-1], bins, self.reg_scale))
            boxes = reached[-1].detach()
            contents.append(x)
        early = self.dec_score_head[0](contents[0])
        scores = [early, *(head(c) for head, c in zip(self.dec_score_head[1:], contents[1:], strict=True))]
        logits = [s + lqe(p) for s, lqe, p in zip(scores, self.decoder.lqe_layers, probabilities, strict=True)]
        return {
            "logits": torch.stack([logits[-1], *logits[:-1], early]),
            "boxes": torch.stack([reached[-1], *reached[:-1], first]),
            "corners": torch.stack([corners[-1], *corners[:-1]]),
            "initial": initial,
        }


class FDRLayers(nn.Module):
    """Holds the decoder layers and quality heads under the names that checkpoints use."""

    def __init__(self, count: int, dim: int, ffn: int, points: Sequence[int], act: Activation) -> None:
        super().__init__()
        self.layers = nn.ModuleList(FDRLayer(dim, ffn, points, act) for _ in range(count))
        self.lqe_layers = nn.ModuleList(fdr.QualityHead(act=act) for _ in range(count))


class FDRLayer(nn.Module):
    """Self-attention among queries, deformable sampling of the maps behind a gate, feed-forward network; post-norm.

    Args:
        dim: channels. ``ffn``: width of the feed-forward network. ``points``: in each map.
    """

    def __init__(self, dim: int, ffn: int, points: Sequence[int], act: Activation) -> None:
        super().__init__()
        self.act = act
        self.self_attn = SelfAttention(dim, HEADS)
        self.norm1 = nn.LayerNorm(dim)
        self.cross_attn = DeformableSampling(dim, HEADS, points)
        self.gateway = Gate(dim)
        self.linear1 = nn.Linear(dim, ffn)
        self.linear2 = nn.Linear(ffn, dim)
        self.norm3 = nn.LayerNorm(dim)
        for linear in (self.linear1, self.linear2):
            nn.init.xavier_uniform_(linear.weight)

    def forward(
        self, x: Tensor, pos: Tensor, boxes: Tensor, values: Sequence[Tensor], may_attend: Tensor | None = None
    ) -> Tensor:
        """Refine queries.

        Args:
            x: float [N, Q, C], content. ``pos``: float [N, Q, C], position.
            boxes: float32 [N, Q, 4], reference boxes cx cy w h as shares of the image.
            values: see ``DeformableSampling.forward``.
            may_attend: bool [Q, Q], see ``SelfAttention.forward``.
        """
        x = self.norm1(x + self.self_attn(x, pos, may_attend))
        x = self.gateway(x, self.cross_attn(x + pos, boxes, values))
        x = x + self.linear2(self.act(self.linear1(x)))
        return self.norm3(x.clamp(-FLOAT16_MAX, FLOAT16_MAX))


class Gate(nn.Module):
    """A norm of two summands, each weighted element by element by a gate that looks at both."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gate = nn.Linear(2 * dim, 2 * dim)
        self.norm = nn.LayerNorm(dim)
        nn.init.zeros_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """``x``, ``y`` float [..., C]."""
        both = torch.cat((x, y), -1)
        left, right = (self.gate(both).sigmoid() * both).chunk(2, -1)
        return self.norm(left + right)
