"""How much of a new network's gradient bfloat16 leaves: 1 where rounding changes nothing, 0 where it decides all.

Median over parameters of the cosine between the float32 gradient and the one under autocast, of a smooth function of
the outputs, on four seeded images; as the family starts, and with all BatchNorm biases at zero.

python benchmarks/rounding.py                  # every installed family, its first size
python benchmarks/rounding.py yolo9 yolox
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

from libreyolo_core.data.batch import prepare
from libreyolo_core.registry import registry
from libreyolo_core.testing.rounding import gradient_agreement
from libreyolo_core.testing.steps import subject


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*")
    parser.add_argument("--imgsz", type=int, default=160)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | as it starts | norm biases at 0 |\n|---|---|---|")
    for key in args.families or sorted(registry().families()):
        who = subject(key, training=False)
        side = -(-args.imgsz // who.sheet.input.multiple) * who.sheet.input.multiple
        images = prepare(who.batch([3, 1, 3, 1], side).images, who.sheet.input)
        start = gradient_agreement(who.network, images)
        norms = [m for m in who.network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        for norm in norms:
            nn.init.zeros_(norm.bias)
        zero = f"{gradient_agreement(who.network, images):.2f}" if norms else ""
        print(f"| {key}-{who.size} | {start:.2f} | {zero} |", flush=True)


if __name__ == "__main__":
    main()
