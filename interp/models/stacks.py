"""Which layer of which stack an attention module belongs to, read off its path in the model."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

_CROSS = re.compile(r"cross|encoder_attn|encdec", re.IGNORECASE)


class Place(NamedTuple):
    """A layer number, a stack ("" where the model has one), and whether keys and values come from another stack."""

    layer: int
    kind: Literal["self", "cross"]
    stack: str


def places(paths: Sequence[str]) -> list[Place]:
    """The place of each of a model's attention modules, given by their paths in order of execution.

    The layer is the first number in a path, the stack the shortest name that tells what comes before it from that of
    other modules (``encoder.block.0.layer.0.SelfAttention``: layer 0 of stack "encoder", where there is also a
    decoder). Where stages number their blocks anew (Swin), layers are counted on through the stages.
    """
    split = [_split(path) for path in paths]
    stacks = _stack_names([prefix for prefix, _, _ in split])
    found = [Place(layer, "cross" if _CROSS.search(rest) else "self", stacks[prefix]) for prefix, layer, rest in split]
    if len(set(found)) == len(found):
        return found
    counts = Counter[tuple[str, str]]()
    for i, place in enumerate(found):
        found[i] = place._replace(layer=counts[place.kind, place.stack])
        counts[place.kind, place.stack] += 1
    return found


def _split(path: str) -> tuple[tuple[str, ...], int, str]:
    """A path as what comes before its first number, the number, and the rest."""
    parts = path.split(".")
    at = next((i for i, part in enumerate(parts) if part.isdigit()), None)
    if at is None:
        return tuple(parts[:-1]), 0, parts[-1]
    return tuple(parts[:at]), int(parts[at]), ".".join(parts[at + 1 :])


def _stack_names(prefixes: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """The shortest names that tell prefixes apart; "" where there is one."""
    different = list(dict.fromkeys(prefixes))
    if len(different) < 2:
        return dict.fromkeys(different, "")
    shared = 0
    while len({prefix[: shared + 1] for prefix in different}) == 1:
        shared += 1
    for depth in range(shared + 1, max(map(len, different)) + 1):
        names = [".".join(prefix[shared:depth]) for prefix in different]
        if len(set(names)) == len(names):
            return dict(zip(different, names, strict=True))
    return {prefix: ".".join(prefix) for prefix in different}


def layer_path(path: str) -> str:
    """The path of the layer that a module lies in: up to its first number; "" where it lies in none."""
    prefix, layer, rest = _split(path)
    return "" if ".".join([*prefix, rest]) == path else ".".join([*prefix, str(layer)])
