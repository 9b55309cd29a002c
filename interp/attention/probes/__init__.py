"""What can be read off pattern rows while they are computed.

A probe is an immutable description. The engine calls :meth:`Probe.start` once per attention call, :meth:`Probe.update`
for every block of query rows, and :meth:`Probe.finish` at the end; state never grows with queries × keys. Statistics
of a sequence are means over its *eligible* rows: rows that could show what is measured. A padding row, or a row that
may read no key, is never eligible; a block none of whose rows may read anything is not shown at all.

Writing one::

    @dataclass(frozen=True, eq=False)
    class Collision(RowMean):
        def measure(self, rows):
            return rows.pattern.square().sum(-1), None
"""

from .base import Measured, Probe, Reading, RowMean
from .collected import (
    HeadDivergence,
    MassReceived,
    NormWeighted,
    SelectedRows,
    StrongestEdges,
)
from .combined import LargestAmong, RelativeEntropy, SetMass, Together, WithoutKeys
from .means import (
    DistanceHistogram,
    Entropy,
    ExpectedDistance,
    GradientTimesWeight,
    LabelMass,
    LabelMatch,
    MaxWeight,
    OffsetMass,
    PositionMass,
    StrongestOffset,
    TargetMass,
)
from .words import StrongestGroup

__all__ = [
    "DistanceHistogram",
    "Entropy",
    "ExpectedDistance",
    "GradientTimesWeight",
    "HeadDivergence",
    "LabelMass",
    "LabelMatch",
    "LargestAmong",
    "MassReceived",
    "MaxWeight",
    "Measured",
    "NormWeighted",
    "OffsetMass",
    "PositionMass",
    "Probe",
    "Reading",
    "RelativeEntropy",
    "RowMean",
    "SelectedRows",
    "SetMass",
    "StrongestEdges",
    "StrongestGroup",
    "StrongestOffset",
    "TargetMass",
    "Together",
    "WithoutKeys",
    "basic",
]


def basic() -> tuple[Probe, ...]:
    """The *basic probes* that benchmarks speak of: entropy, largest weight, current and previous token, first
    position, expected distance."""
    return (Entropy(), MaxWeight(), OffsetMass(offsets=(0, 1)), PositionMass(positions=(0,)), ExpectedDistance())
