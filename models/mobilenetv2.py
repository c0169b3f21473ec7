"""MobileNetV2, in the sizes that FedFA's clients choose from.

Sandler et al., MobileNetV2: Inverted Residuals and Linear Bottlenecks; Park and Joe-Wong, FedFA,
Tables 4 and 5. The smallest one is the published network. Blocks are named by stage and number,
where torchvision counts them all through.
"""

from __future__ import annotations

from torch import nn

from models.inverted_bottlenecks import Architecture, Stage, offer


def mobilenet_v2(*depths: int) -> Architecture:
    """Return Table 4's network, each of whose d_1 to d_4 may be any of `depths`."""
    deeper = tuple(d + 1 for d in depths)
    stages = (
        Stage(1, 1, (16, 24), (1,)),
        Stage(6, 2, (24, 32), (2,)),
        Stage(6, 2, (32, 40, 48), deeper),
        Stage(6, 2, (64, 70, 80, 88), tuple(d + 2 for d in depths)),
        Stage(6, 1, (96, 112, 120, 136), deeper),
        Stage(6, 2, (160, 184, 200, 224), deeper),
        Stage(6, 1, (320, 360, 400, 440), (1,)),
    )
    return Architecture(32, stages, 1280, nn.ReLU6)


offer("mobilenet_v2", mobilenet_v2(2, 3, 4, 5))
offer("mobilenet_v2-mini", mobilenet_v2(1, 2).narrowed(4))
