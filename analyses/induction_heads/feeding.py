"""Which previous-token heads feed which induction heads, through what the latter compute their keys from.

An induction head finds the token after the previous occurrence because that token's key says what came before it,
which an earlier previous-token head has written into the stream (K-composition, Elhage et al. 2021). Here the earlier
head's output is taken out of the later head's key input alone, and the later head's prefix matching is measured again.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from analyses.induction_heads.config import Config
from analyses.induction_heads.inputs import Inputs, even_batches
from analyses.induction_heads.kinds import Head, Selection
from interp import HookedModel
from interp.ablation import without_logits
from interp.attention.edits import Edit, GateHeads, ReplaceZ
from interp.attention.probes import TargetMass
from interp.data import RepeatedTokens
from interp.errors import UserError
from interp.model_data import pass_arguments
from interp.models.projections import AttentionModule, attention_modules, head_weights, split_fused
from interp.models.recording import Run
from interp.models.residual import AttentionNorms, residual_stream
from interp.models.sites import AttentionSite
from interp.results import Workspace
from interp.results.tables import empty_table
from interp.statistics import mean_interval

_COLUMNS = {
    "source_site": str, "source_layer": int, "source_head": int, "target_site": str, "target_layer": int,
    "target_head": int, "path": str, "prefix_matching": float, "change": float, "ci_low": float, "ci_high": float,
    "n": int, "note": str,
}  # fmt: skip
_PART = "which heads feed which"


@dataclass(frozen=True, eq=False)
class Place:
    """An attention module on the residual stream.

    Attributes:
        site: what it is called.
        attention: its projections.
        norms: before and after it.
        root: the model's module.
    """

    site: AttentionSite
    attention: AttentionModule
    norms: AttentionNorms
    root: nn.Module

    def written(
        self, head: int, z: Float[Tensor, "batch query d_head"], whole: Float[Tensor, "batch query d_model"]
    ) -> Float[Tensor, "batch query d_model"]:
        """What one head adds to the stream: what would be missing there if its z were zero.

        Args:
            head: which.
            z: its output.
            whole: what the output projection gives for all heads; needed where a norm follows it (Gemma).
        """
        result = z @ head_weights(self.attention).W_O[head].to(z)
        if self.norms.after is not None:
            norm = self.root.get_submodule(self.norms.after.path)
            result = norm.forward(whole) - norm.forward(whole - result)
        return result * float(getattr(getattr(self.root, "config", None), "residual_multiplier", 1.0))

    @contextmanager
    def keys_without(self, written: Float[Tensor, "batch query d_model"]) -> Iterator[None]:
        """Compute this module's keys as if something had not been written into the stream before it.

        The norm is computed anew on what is left of the stream. Queries and values stay as they are.
        """
        norm = None if self.norms.before is None else self.root.get_submodule(self.norms.before.path)
        stream: list[Tensor] = []

        def see(module: nn.Module, given: tuple[Any, ...]) -> None:
            stream[:] = given[:1]

        def keys(module: nn.Module, given: tuple[Any, ...], output: Tensor) -> Tensor:
            left = given[0] if norm is None else stream[0]
            left = left - written.to(left)
            anew = module.forward(left if norm is None else norm.forward(left))
            if fused is None:
                return anew
            return output.index_copy(-1, fused, anew[..., fused])

        fused = self._key_features()
        with ExitStack() as hooks:
            if norm is not None:
                hooks.callback(norm.register_forward_pre_hook(see).remove)
            projection = self.attention.projections["fused" if fused is not None else "key"]
            hooks.callback(projection.register_forward_hook(keys).remove)
            yield

    def _key_features(self) -> Tensor | None:
        """Which features of a fused projection are keys; None where keys have a projection of their own."""
        attention = self.attention
        if "fused" not in attention.projections or attention.layout is None:
            return None
        n_heads = 0 if "query" in attention.projections else attention.n_heads
        features = torch.arange((n_heads + 2 * attention.n_kv_heads) * attention.d_head)
        _, key, _ = split_fused(features, attention.layout, n_heads, attention.n_kv_heads, attention.d_head)
        weight = attention.projections["fused"].weight
        return key.flatten().to(weight.device if isinstance(weight, Tensor) else "cpu")


def table(model: HookedModel, given: Inputs, top: Selection, config: Config, work: Workspace) -> pd.DataFrame:
    """The table ``composition``: change of prefix matching without an earlier head, in two ways.

    ``key_input``: without what the source has written directly into the stream that the target's keys are made from; it
    reaches the target by no other way, and nothing after the target. ``total``: with the source's output zero.

    Sources and targets are the strongest heads above their thresholds on one half of the sequences; changes are
    measured on the other.
    """
    sources = top.strongest("previous_token", config.sources, above_threshold=True)
    targets = top.strongest("induction", config.targets, above_threshold=True)
    for kind, heads in (("previous-token", sources), ("induction", targets)):
        if not heads:
            work.skip(_PART, f"no {kind} head is above its threshold")
            return empty_table(_COLUMNS)
    try:
        places = stream_places(model, {site for site, _ in [*sources, *targets]})
    except UserError as reason:
        work.skip(_PART, str(reason))
        return empty_table(_COLUMNS)
    pairs = [(s, t) for s in sources for t in targets if is_earlier(places[s[0]].site, places[t[0]].site)]
    if not pairs:
        work.skip(_PART, "no previous-token head above its threshold comes before an induction head above its own")
        return empty_table(_COLUMNS)
    made = work.step("composition", lambda: {"composition": _measured(model, given, top, places, pairs, config, work)})
    return made["composition"]


def stream_places(model: HookedModel, names: set[str]) -> dict[str, Place]:
    """Some sites with their projections and norms.

    Raises:
        UserError: a site's output does not simply add to the stream, or is out of reach.
    """
    attentions = attention_modules(model.module, unknown="skip")
    norms = residual_stream(model.module, attentions).norms
    by_path = {attention.path: attention for attention in attentions}
    places = {}
    for name in sorted(names):
        site = model.site(name)
        if site.source == "softmax":
            raise UserError(f"{name} computes its own attention, whose outputs are out of reach")
        if site.path not in by_path or site.path not in norms:
            raise UserError(f"the projections of {name} are not known")
        if norms[site.path].order == "post":
            raise UserError(
                "post-norm: the stream itself passes through norms, so what a head wrote is not a part of it"
            )
        places[name] = Place(site, by_path[site.path], norms[site.path], model.module)
    return places


def is_earlier(source: AttentionSite, target: AttentionSite) -> bool:
    """Whether what the source writes can be read by the target's keys: earlier in the same stack, self-attention."""
    return source.stack == target.stack and source.layer < target.layer and source.kind == target.kind == "self"


def shared_keys(site: AttentionSite, head: int) -> list[int]:
    """The other query heads that read the same keys."""
    mine = site.kv_head_of(head)
    return [other for other in range(site.n_heads) if other != head and site.kv_head_of(other) == mine]


def _measured(
    model: HookedModel, given: Inputs, top: Selection, places: dict[str, Place], pairs: Sequence[tuple[Head, Head]],
    config: Config, work: Workspace,
) -> pd.DataFrame:  # fmt: skip
    batches = even_batches(given.repeated.select(top.reported_on), config)
    found: dict[tuple[Head | None, Head, str], list[NDArray[np.float64]]] = {}
    sources = list(dict.fromkeys(source for source, _ in pairs))
    for batch in work.progress(batches, "batches of sequences"):
        for key, values in _of_batch(model, batch, places, sources, pairs):
            found.setdefault(key, []).append(values)
    by_pair = {key: np.concatenate(values) for key, values in found.items()}
    rows = [
        _row(model, source, target, path, by_pair[source, target, path], by_pair[None, target, "clean"], config)
        for source, target in pairs
        for path in ("key_input", "total")
    ]
    return pd.DataFrame(rows)


def _of_batch(
    model: HookedModel, batch: RepeatedTokens, places: dict[str, Place], sources: Sequence[Head],
    pairs: Sequence[tuple[Head, Head]],
) -> Iterator[tuple[tuple[Head | None, Head, str], NDArray[np.float64]]]:  # fmt: skip
    """Prefix matching of every target by sequence: untouched, and without each source in both ways."""
    probe = TargetMass(targets=batch.induction_targets)
    common = {**pass_arguments(model, batch), **without_logits(model), "probes": [probe]}
    targets = list(dict.fromkeys(target for _, target in pairs))
    with _outputs({places[site] for site, _ in sources}) as whole:
        clean = model.run(**common, keep="z", sites=places)
    for target in targets:
        yield (None, target, "clean"), _prefix_matching(clean, probe, target)
    for source in sources:
        fed = [target for other, target in pairs if other == source]
        sites = {site for site, _ in fed}
        site, head = source
        written = places[site].written(head, clean.z[site][:, head], whole[site])
        # With every target's z put back, nothing that follows from the changed patterns reaches another target
        back = [ReplaceZ({(name, h): clean.z[name][:, h] for h in range(clean.z[name].shape[1])}) for name in sites]
        with ExitStack() as hooks:
            for name in sites:
                hooks.enter_context(places[name].keys_without(written))
            by_key = model.run(**common, edits=back, sites=sites)
        gate: list[Edit] = [GateHeads({source: 0.0})]
        everywhere = model.run(**common, edits=gate, sites=sites)
        for target in fed:
            yield (source, target, "key_input"), _prefix_matching(by_key, probe, target)
            yield (source, target, "total"), _prefix_matching(everywhere, probe, target)


@contextmanager
def _outputs(places: set[Place]) -> Iterator[dict[str, Tensor]]:
    """What the output projections of some places give in the forward passes meanwhile, by site."""
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        return lambda module, given, output: seen.__setitem__(name, output.detach())

    with ExitStack() as hooks:
        for place in places:
            projection = place.root.get_submodule(place.attention.output_path)
            hooks.callback(projection.register_forward_hook(keep(place.site.name)).remove)
        yield seen


def _prefix_matching(run: Run, probe: TargetMass, target: Head) -> NDArray[np.float64]:
    site, head = target
    return run.readings(probe)[site].values[:, head].double().cpu().numpy()


def _row(
    model: HookedModel, source: Head, target: Head, path: str, values: NDArray[np.float64], clean: NDArray[np.float64],
    config: Config,
) -> dict[str, object]:  # fmt: skip
    change = mean_interval(values - clean, bounds=(-1.0, 1.0), seed=config.seed)
    site = model.site(target[0])
    others = ", ".join(f"L{site.layer}H{other}" for other in shared_keys(site, target[1]))
    shared = f"the keys are shared with {others}, whose patterns change too and whose outputs are put back"
    return {
        "source_site": source[0], "source_layer": model.site(source[0]).layer, "source_head": source[1],
        "target_site": target[0], "target_layer": site.layer, "target_head": target[1], "path": path,
        "prefix_matching": float(np.nanmean(values)), "change": float(change.value), "ci_low": float(change.low),
        "ci_high": float(change.high), "n": int(change.n),
        "note": shared if others and path == "key_input" else "",
    }  # fmt: skip
