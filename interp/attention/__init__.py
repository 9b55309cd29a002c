"""The custom attention core: tensors in, tensors out. It knows no model."""

from . import edits, probes
from .bias import AlibiSlopes, RelativeBuckets
from .core import NonFiniteError, attend
from .divergences import Divergences, head_divergences
from .mask import Mask
from .reference import reference
from .rows import Block, Rows, Site, SiteShape
from .traces import Trace, Traces

__all__ = [
    "AlibiSlopes",
    "Block",
    "Divergences",
    "Mask",
    "NonFiniteError",
    "RelativeBuckets",
    "Rows",
    "Site",
    "SiteShape",
    "Trace",
    "Traces",
    "attend",
    "edits",
    "head_divergences",
    "probes",
    "reference",
]
