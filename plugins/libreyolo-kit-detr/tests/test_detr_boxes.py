"""Box forms and overlaps."""

import torch

from libreyolo_kit_detr.boxes import absolute_xyxy, cxcywh_to_xyxy, iou_giou, relative_cxcywh, xyxy_to_cxcywh


def test_box_forms_are_inverse_to_each_other():
    boxes = torch.rand(3, 5, 4)
    torch.testing.assert_close(xyxy_to_cxcywh(cxcywh_to_xyxy(boxes)), boxes)
    pixels = torch.tensor([[16.0, 8.0, 48.0, 24.0]])
    shares = relative_cxcywh(pixels, (32, 64))
    torch.testing.assert_close(shares, torch.tensor([[0.5, 0.5, 0.5, 0.5]]))
    torch.testing.assert_close(absolute_xyxy(shares, (32, 64)), pixels)


def test_overlaps_have_their_textbook_values():
    a = torch.tensor([[0.0, 0.0, 2.0, 2.0]])
    b = torch.tensor([[0.0, 0.0, 2.0, 2.0], [1.0, 1.0, 3.0, 3.0], [4.0, 0.0, 6.0, 2.0]])
    iou, giou = iou_giou(a[:, None], b[None])
    # hulls: 4, 9 and 12; the tolerance is what eps = 1e-6 on areas of this size can move
    torch.testing.assert_close(iou, torch.tensor([[1.0, 1 / 7, 0.0]]), atol=1e-6, rtol=0)
    torch.testing.assert_close(giou, torch.tensor([[1.0, 1 / 7 - 2 / 9, -4 / 12]]), atol=1e-6, rtol=0)


def test_empty_boxes_have_finite_overlaps_and_gradients():
    a = torch.zeros(2, 4, requires_grad=True)
    iou, giou = iou_giou(a, torch.zeros(2, 4))
    (iou + giou).sum().backward()
    assert torch.isfinite(giou).all() and torch.isfinite(a.grad).all()
