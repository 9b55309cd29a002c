"""Which heads stay: said by site, by layer, or as text; checked against a model."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from interp.errors import UserError
from interp.models.hooked import HookedModel
from interp.models.sites import AttentionSite, find_site

__all__ = ["Head", "Kept", "kept_after", "kept_by_site", "parse_heads"]

Head = tuple[str, int] | tuple[int, int]
"""A head as (site name, head), or (layer, head) where the layer has one site."""

Kept = dict[str, tuple[int, ...]]
"""Of every site of a model, the heads that stay, ascending."""

_HEAD = re.compile(r"(?:L(?P<layer>\d+)|(?P<site>[\w.]+?)\.)H(?P<head>\d+)")


def kept_by_site(model: HookedModel, keep: Mapping[str, Collection[int]] | Mapping[int, Collection[int]]) -> Kept:
    """The heads that stay at every site.

    Args:
        keep: by site name, or by layer; sites that are not named keep all of their heads.

    Raises:
        UserError: a site, a layer or a head that does not exist, a site named twice, or no head left in the model.
    """
    found: Kept = {}
    for where, heads in keep.items():
        site = find_site(model.sites, where)
        if site.name in found:
            raise UserError(f"{site.name} is named twice, by its name and by its layer")
        _check(site, heads)
        found[site.name] = tuple(sorted(set(heads)))
    whole = {site.name: found.get(site.name, tuple(range(site.n_heads))) for site in model.sites}
    if not any(whole.values()):
        raise UserError("no head would be left in the whole model: keep at least one")
    return whole


def kept_after(model: HookedModel, removed: Iterable[Head]) -> Kept:
    """The heads that stay at every site when some are removed.

    Raises:
        UserError: a head that does not exist, or that is named twice; or no head left.
    """
    gone: dict[str, set[int]] = {}
    for where, head in removed:
        site = find_site(model.sites, where)
        _check(site, (head,))
        if head in gone.setdefault(site.name, set()):
            raise UserError(f"head {head} of {site.name} is named twice")
        gone[site.name].add(head)
    left = {site.name: set(range(site.n_heads)) - gone.get(site.name, set()) for site in model.sites}
    return kept_by_site(model, {name: tuple(heads) for name, heads in left.items()})


def parse_heads(text: str) -> list[Head]:
    """Heads from text such as ``L3H4,L5H0`` or, where layers have several sites, ``decoder_blocks.0.cross_attn.H3``.

    Raises:
        UserError: a part that names no head.
    """
    found: list[Head] = []
    for part in (part.strip() for part in text.split(",") if part.strip()):
        match = _HEAD.fullmatch(part)
        if match is None:
            raise UserError(f"{part!r} names no head: write L3H4, or SITE.H4 (decoder_blocks.0.cross_attn.H4)")
        where = match["site"] or int(match["layer"])
        found.append((where, int(match["head"])))  # type: ignore[arg-type]
    if not found:
        raise UserError("no heads are named: write them as L3H4,L5H0")
    return found


def _check(site: AttentionSite, heads: Collection[int]) -> None:
    for head in heads:
        if isinstance(head, bool) or not isinstance(head, int) or not 0 <= head < site.n_heads:
            raise UserError(f"{site.name} has heads 0 … {site.n_heads - 1}; there is no head {head!r}")
