"""The sliceable networks: `build("resnet56", num_classes=10, slice=Slice(width=0.5))`."""

from models.families import (
    Family,
    Features,
    SlicedNetwork,
    Walk,
    build,
    early_heads,
    family,
    names,
    register,
)
from models.slicing import (
    PREFIX,
    Region,
    Slice,
    SliceError,
    SliceMap,
    State,
    Window,
    declare_chunks,
    declare_parts,
    extract,
    slice_map,
)
from models.task import Task

# isort: split
# Importing a family registers its networks. The imports come last, so that a family may import from
# `models` itself.
from models import bert as _bert  # noqa: F401
from models import conv1d as _conv1d  # noqa: F401
from models import efficientnet as _efficientnet  # noqa: F401
from models import efficientnetv2 as _efficientnetv2  # noqa: F401
from models import mobilenetv2 as _mobilenetv2  # noqa: F401
from models import msdnet as _msdnet  # noqa: F401
from models import preresnet as _preresnet  # noqa: F401
from models import resnet as _resnet  # noqa: F401
from models import transformer as _transformer  # noqa: F401
from models import vit as _vit  # noqa: F401

__all__ = [
    "PREFIX",
    "Family",
    "Features",
    "Region",
    "Slice",
    "SliceError",
    "SliceMap",
    "SlicedNetwork",
    "State",
    "Task",
    "Walk",
    "Window",
    "build",
    "declare_chunks",
    "declare_parts",
    "early_heads",
    "extract",
    "family",
    "names",
    "register",
    "slice_map",
]
