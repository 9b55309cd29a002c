"""What transformers' own eager patterns say, from whole patterns and by definition: what probes must agree with."""

import copy
from typing import Any

import torch
from torch import Tensor

from interp.attention import probes


def untouched(module: Any, attention: str = "eager") -> Any:
    """The same weights in a model of their own, never hooked, that runs one of transformers' attention functions."""
    config = copy.deepcopy(module.config)
    config._attn_implementation_internal = None
    twin = type(module)._from_config(config, attn_implementation=attention, dtype=module.dtype)
    twin.load_state_dict(module.state_dict())
    return twin.eval()


def patterns(twin: Any, **arguments: Any) -> tuple[dict[str, list[Tensor]], Any]:
    """Eager patterns [batch, head, query, key] of an untouched model by kind of attention, layer by layer, and the
    output."""
    with torch.no_grad():
        output = twin(**arguments, output_attentions=True)
    names = {"attentions": "", "encoder_attentions": "encoder", "decoder_attentions": "decoder",
             "cross_attentions": "cross"}  # fmt: skip
    found = {kind: list(output[name]) for name, kind in names.items() if output.get(name) is not None}
    return found, output


def by_site(found: dict[str, list[Tensor]], sites: Any) -> dict[str, Tensor]:
    """The same by name of the site of a hooked model."""

    def kind(site: Any) -> str:
        return "cross" if site.kind == "cross" else site.stack

    return {site.name: found[kind(site)][site.layer] for site in sites}


def statistics(
    pattern: Tensor, query_valid: Tensor, key_valid: Tensor, cross: bool, targets: Tensor, labels: Tensor
) -> dict[str, Tensor]:
    """Statistics [batch, head, ...] of whole patterns. A key may be read where eager attention gives it weight.

    Args:
        pattern: [batch, head, query, key].
        query_valid: [batch, query]; ``key_valid``: [batch, key].
        cross: distances mean nothing.
        targets: of TargetMass [query, target], −1 for none.
        labels: of LabelMatch [batch, key].
    """
    pattern = pattern.double()
    n_queries, n_keys = pattern.shape[-2:]
    pattern = pattern * (query_valid[:, None, :, None] & key_valid[:, None, None, :])
    readable = pattern > 0
    rest = 1 - pattern.sum(-1)  # what a sink took

    def mean(rows: Tensor, eligible: Tensor) -> Tensor:
        eligible = (eligible & query_valid[:, None]).expand_as(rows)
        return torch.where(eligible, rows, 0).sum(-1) / eligible.sum(-1)

    everywhere = torch.ones(1, 1, n_queries, dtype=torch.bool)
    outcomes = torch.cat([pattern, torch.where(rest > 1e-6, rest, 0)[..., None]], -1)
    first = key_valid.int().argmax(-1)[:, None, None, None].expand(-1, *pattern.shape[1:3], 1)
    hit = (torch.arange(n_keys) == targets[:, :, None]).any(1)
    found = {
        "entropy": mean(torch.special.entr(outcomes).sum(-1), everywhere),
        "max_weight": mean(pattern.amax(-1), everywhere),
        "position_mass": mean(pattern.gather(-1, first)[..., 0], readable.gather(-1, first)[..., 0])[..., None],
        "target_mass": mean((pattern * hit).sum(-1), (readable & hit).any(-1)),
        "mass_received": pattern.sum(-2) / readable.sum(-2),
    }
    if not cross:
        away = torch.arange(n_queries)[:, None] - torch.arange(n_keys)
        found["offset_mass"] = torch.stack([
            mean((pattern * (away == offset)).sum(-1), (readable & (away == offset)).any(-1)) for offset in (0, 1)
        ], -1)  # fmt: skip
        found["expected_distance"] = mean((pattern * away.abs()).sum(-1) / pattern.sum(-1), everywhere)
        earlier = labels.masked_fill(~key_valid, -1).roll(1, -1)
        earlier[:, 0] = -1
        follows = (labels[:, :, None] == earlier[:, None]) & (away != -1)
        found["label_match"] = mean((pattern * follows[:, None]).sum(-1), (readable & follows[:, None]).any(-1))
    return found


def same_probes(targets: Tensor, labels: Tensor, cross: bool) -> list[probes.Probe]:
    """The probes that read what :func:`statistics` computes."""
    always = [*probes.basic(), probes.TargetMass(targets=targets), probes.MassReceived()]
    return always if cross else [*always, probes.LabelMatch(labels=labels, shift=1)]


def tolerance(probe: probes.Probe) -> dict[str, Any]:
    """Of the comparison: absolute for statistics in [0, 1], relative for the others."""
    bounded = probe.name not in ("entropy", "expected_distance")
    return {"rtol": 0, "atol": 1e-5} if bounded else {"rtol": 1e-5, "atol": 1e-9}
