"""What can be written into attention while it is computed.

An edit is an immutable description: which heads, and what happens to them. Heads are addressed as ``(layer, head)``,
as ``(site name, head)``, or, in a direct call of :func:`attend`, as ``head``. Edits act at four stages, in the order
of the computation, whatever order they are given in; edits of one stage compose in the order given:

1. ``scale``: the factor on q · k (:class:`ScaleExponent`);
2. ``scores``: pre-softmax scores and forbidden edges (:class:`Temperature`, :class:`AddLogits`, :class:`KnockOut`);
3. ``pattern``: the weights (:class:`Uniform`, :class:`Permute`, :class:`ReplaceRows`, :class:`Replay`);
4. ``z``: the head's output before W_O (:class:`GateHeads`, :class:`ReplaceZ`).

Tensors inside an edit receive gradients. Writing one: subclass :class:`Edit` with a ``stage`` and ``apply``.
"""

from .base import Address, Edit, place_and_head
from .outputs import GateHeads, ReplaceZ
from .patterns import Permute, ReplaceRows, Replay, Uniform
from .scores import AddLogits, KnockOut, ScaleExponent, Temperature

__all__ = [
    "AddLogits",
    "Address",
    "Edit",
    "GateHeads",
    "KnockOut",
    "Permute",
    "ReplaceRows",
    "ReplaceZ",
    "Replay",
    "ScaleExponent",
    "Temperature",
    "Uniform",
    "place_and_head",
]
