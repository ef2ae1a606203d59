"""Deformable attention against its definition, point by point."""

import math

import torch

from libreyolo_kit_detr.deformable import DeformableAttention, DeformableSampling, split_heads


def bilinear(cells, x, y):
    """The value at pixel position (x, y) of ``cells`` [h, w, C], zero outside."""
    height, width, channels = cells.shape
    out = torch.zeros(channels)
    for row in (math.floor(y), math.floor(y) + 1):
        for column in (math.floor(x), math.floor(x) + 1):
            if 0 <= row < height and 0 <= column < width:
                out += (1 - abs(x - column)) * (1 - abs(y - row)) * cells[row, column]
    return out


def test_it_equals_a_loop_over_heads_maps_and_points():
    torch.manual_seed(0)
    shapes, dim, heads = [(4, 6), (2, 3)], 8, 2
    module = DeformableAttention(dim, heads, 2, 2)
    torch.nn.init.normal_(module.sampling_offsets.weight, std=0.5)
    torch.nn.init.normal_(module.attention_weights.weight)
    memory = torch.randn(2, sum(h * w for h, w in shapes), dim)
    query, boxes = torch.randn(2, 3, dim), torch.rand(2, 3, 4)
    value = module.value_proj(memory).unflatten(-1, (heads, -1))
    offsets = module.sampling_offsets(query).unflatten(-1, (heads, 2, 2, 2))
    weights = module.attention_weights(query).unflatten(-1, (heads, 4)).softmax(-1).unflatten(-1, (2, 2))
    wanted = torch.zeros(2, 3, heads, dim // heads)
    for n in range(2):
        for q in range(3):
            for h in range(heads):
                start = 0
                for level, (height, width) in enumerate(shapes):
                    cells = value[n, start : start + height * width, h].unflatten(0, (height, width))
                    start += height * width
                    for p in range(2):
                        where = boxes[n, q, :2] + offsets[n, q, h, level, p] / 2 * boxes[n, q, 2:] * 0.5
                        x, y = (where * torch.tensor([width, height]) - 0.5).tolist()
                        wanted[n, q, h] += weights[n, q, h, level, p] * bilinear(cells, x, y)
    out = module(query, boxes, memory, shapes)
    # float32 sums of 8 products in another order
    torch.testing.assert_close(out, module.output_proj(wanted.flatten(2)), atol=1e-5, rtol=1e-5)


def test_heads_start_on_rays_of_growing_length():
    module = DeformableAttention(32, 8, 3, 4)
    start = module.sampling_offsets.bias.unflatten(0, (8, 3, 4, 2))
    torch.testing.assert_close(start.abs().amax(-1), torch.arange(1.0, 5.0).expand(8, 3, 4))
    torch.testing.assert_close(start[0, 0], torch.tensor([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [4.0, 0.0]]))


def test_maps_with_different_numbers_of_points_are_read_without_projection():
    torch.manual_seed(0)
    heads, points, shapes = 2, (1, 3), [(4, 6), (2, 3)]
    module = DeformableSampling(8, heads, points)
    torch.nn.init.normal_(module.sampling_offsets.weight, std=0.5)
    torch.nn.init.normal_(module.attention_weights.weight)
    maps = [torch.randn(1, 8, *shape) for shape in shapes]
    query, boxes = torch.randn(1, 3, 8), torch.rand(1, 3, 4)
    offsets = module.sampling_offsets(query).unflatten(-1, (heads, 4, 2))
    weights = module.attention_weights(query).unflatten(-1, (heads, 4)).softmax(-1)
    level, each = [0, 1, 1, 1], [1, 3, 3, 3]
    wanted = torch.zeros(3, heads, 4)
    for q in range(3):
        for h in range(heads):
            for p in range(4):
                height, width = shapes[level[p]]
                cells = maps[level[p]][0, h * 4 : h * 4 + 4].permute(1, 2, 0)
                where = boxes[0, q, :2] + offsets[0, q, h, p] / each[p] * boxes[0, q, 2:] * 0.5
                x, y = (where * torch.tensor([width, height]) - 0.5).tolist()
                wanted[q, h] += weights[0, q, h, p] * bilinear(cells, x, y)
    out = module(query, boxes, [split_heads(x, heads) for x in maps])
    # float32 sums of a few products in another order
    torch.testing.assert_close(out[0], wanted.flatten(1), atol=1e-5, rtol=1e-5)
