"""Where attention happens in a model: one site per attention module, named as TransformerLens names it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import nn

from interp.attention import Site
from interp.attention.edits import Edit, place_and_head
from interp.errors import UserError
from interp.models.groups import kv_index

__all__ = ["AttentionSite", "NeverReachedError", "check_addresses", "check_reached", "find_site", "listed", "site_name"]

Source = Literal["core", "softmax"]
"""How a site's attention reaches probes and edits: computed by the core, or by the model, which then holds its whole
pattern, read between its softmax and its values."""


class NeverReachedError(UserError):
    """A probe, edit or hook names something that the forward pass never reached."""


@dataclass(frozen=True, eq=False)
class AttentionSite:
    """One attention module of a model.

    Attributes:
        name: ``blocks.3.attn``, ``encoder_blocks.0.attn``, ``decoder_blocks.0.cross_attn``, …
        layer: its layer within its stack. ``stack``: "encoder", "decoder", "" where a model has one stack.
        kind: "self", or "cross" where keys and values come from the other stack.
        path: the module's name within the model; ``module``: the module.
        n_heads, n_kv_heads, d_head: query head h reads kv head ``h // (n_heads // n_kv_heads)``, unless groups were
            pruned unevenly: see :meth:`kv_head_of`.
        source: "core", or "softmax" where the model computes its own attention.
        weights: gives the per-head weights (:class:`interp.models.projections.HeadWeights`), or raises a UserError
            that says why they are not known.
        projections: the linear modules by role ("query", "key", "value" or "fused"; "output"), where they are known.
    """

    name: str
    layer: int
    stack: str
    kind: Literal["self", "cross"]
    path: str
    module: nn.Module = field(repr=False)
    n_heads: int
    n_kv_heads: int
    d_head: int
    source: Source
    weights: Callable[[], object] = field(repr=False)
    projections: Mapping[str, nn.Module] = field(default_factory=dict, repr=False)

    def kv_head_of(self, head: int) -> int:
        """The kv head that a query head reads."""
        index = kv_index(self.module)
        return head // (self.n_heads // self.n_kv_heads) if index is None else int(index[head])

    @property
    def core_site(self) -> Site:
        """What the core calls this place."""
        return Site(self.name, self.layer, self.weights)


def site_name(stack: str, layer: int, kind: str) -> str:
    """TransformerLens's name of an attention module: ``blocks``, ``encoder_blocks`` or ``decoder_blocks``."""
    blocks = f"{stack}_blocks" if stack else "blocks"
    if kind == "cross":
        return f"{blocks}.{layer}.cross_attn"
    return f"{blocks}.{layer}.{'self_attn' if stack == 'decoder' else 'attn'}"


def listed(sites: Sequence[AttentionSite]) -> str:
    """The names of some sites, for a message: all of a few, the ends of many."""
    names = [site.name for site in sites]
    return ", ".join(names) if len(names) <= 8 else f"{', '.join(names[:3])} … {names[-1]} ({len(names)} in all)"


def find_site(sites: Sequence[AttentionSite], where: str | int) -> AttentionSite:
    """The site of a name, or of a layer that has one site.

    Raises:
        UserError: no site, or several, are meant.
    """
    found = [site for site in sites if where in (site.name, site.layer)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise UserError(f"there is no site {where!r}; the sites are {listed(sites)}")
    raise UserError(f"layer {where} is ambiguous: it has {listed(found)}; name one of these")


def check_addresses(sites: Sequence[AttentionSite], edit: Edit) -> None:
    """Refuse an edit of a head that does not exist, or that more than one head is meant by.

    Raises:
        UserError: naming the edit, the address and what there is.
    """
    if not isinstance(edit, Edit):
        raise UserError(f"edits are made from interp.attention.edits, such as GateHeads({{(0, 1): 0.0}}); got {edit!r}")
    kind = type(edit).__name__
    for address in edit.addresses():
        try:
            where, head = place_and_head(address)
            if where is None:
                raise UserError(
                    f"head {head} of which layer? Address heads as (layer, head) or (site, head); the sites are "
                    f"{listed(sites)}"
                )
            site = find_site(sites, where)
        except (UserError, ValueError) as error:
            raise UserError(f"{kind}: {error}") from None
        if not 0 <= head < site.n_heads:
            raise UserError(f"{kind}: {site.name} has heads 0 … {site.n_heads - 1}; there is no head {head}")


def check_reached(sites: Sequence[AttentionSite], edits: Sequence[Edit], reached: Collection[str]) -> None:
    """Refuse edits of sites that no forward pass has reached: they have done nothing.

    Raises:
        NeverReachedError: naming the edit and the sites that were reached.
    """
    for edit in edits:
        for where, head in map(place_and_head, edit.addresses()):
            if where is not None and find_site(sites, where).name not in reached:
                went = listed([site for site in sites if site.name in reached])
                raise NeverReachedError(
                    f"{type(edit).__name__} at {where!r}, head {head} was never reached: the forward pass went through "
                    f"{went}"
                )
