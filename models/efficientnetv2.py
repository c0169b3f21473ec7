"""EfficientNetV2, in the sizes that FedFA's clients choose from.

Tan and Le, EfficientNetV2: Smaller Models and Faster Training; Park and Joe-Wong, FedFA, Tables 4
and 5. Names are those of torchvision's EfficientNets.

Where the tables are open, we follow EfficientNetV2-S: stages 1 to 3 are fused, stages 4 to 7 weight
their channels (squeeze-and-excitation), and strides are the same. The seventh stage, which S does
not have, is one block of stride 1. Stage 1 has a 1x1 convolution behind its 3x3 one, as printed in
Table 4, where Tan and Le have the latter alone. Training skips no blocks at random.
"""

from __future__ import annotations

from torch import nn

from models.inverted_bottlenecks import Architecture, Stage, offer


def efficientnet_v2(*depths: int) -> Architecture:
    """Return Table 4's network, each of whose d_1 to d_5 may be any of `depths`."""
    deeper = tuple(d + 1 for d in depths)
    stages = (
        Stage(1, 1, (24,), (2,), fused=True),
        Stage(4, 2, (24, 32), deeper, fused=True),
        Stage(4, 2, (48, 56, 64), deeper, fused=True),
        Stage(4, 2, (64, 72, 80, 88), deeper, squeezes=True),
        Stage(6, 1, (128, 144, 160, 176), deeper, squeezes=True),
        Stage(6, 2, (160, 184, 200, 224), deeper, squeezes=True),
        Stage(6, 1, (256, 288, 320, 352), (1,), squeezes=True),
    )
    return Architecture(24, stages, 1792, nn.SiLU)


offer("efficientnet_v2", efficientnet_v2(2, 3, 4, 5))
offer("efficientnet_v2-mini", efficientnet_v2(1, 2).narrowed(4))
