"""What is read off the attention: one value for each head, window and measure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from analyses.head_specialization.config import Config
from analyses.head_specialization.inputs import Inputs, Text, batches
from interp import HookedModel
from interp.ablation import without_logits
from interp.attention import probes
from interp.attention.probes import Probe, RowMean
from interp.errors import UserError
from interp.model_data import pass_arguments
from interp.models.recording import Run
from interp.models.sites import AttentionSite
from interp.results import Workspace

#: Offsets are in tokens, negative for earlier keys.
OFFSETS = tuple(range(-8, 9))
#: Sets of keys whose mass is read, in the order of `TokenLabels`.
KEY_SETS = ("special", "separator", "punctuation", "number", "sentence_start")
#: Scores of the table ``heads`` that are masses; each has a twin of norm-weighted attention, with the suffix ``_norm``.
MASSES = (
    "first_position", *KEY_SETS, "current_token", "duplicate_token", "previous_token", "next_token", "rare_word",
    "bracket_match", "quote_match", "prefix_matching",
)  # fmt: skip
SHAPES = (
    "entropy", "relative_entropy", "entropy_without_sink", "max_weight", "confidence", "expected_distance",
    "expected_distance_without_sink", "sink", "sink_elsewhere",
)  # fmt: skip
#: Measures in tokens, nats, or anything but a share.
UNBOUNDED = ("entropy", "entropy_without_sink", "expected_distance", "expected_distance_without_sink", "entropy_norm")
#: Shares of windows in which something happens or does not.
EVENTS = ("sink", "sink_elsewhere")


@dataclass(frozen=True, eq=False)
class Reads:
    """A probe and what its values are called, label by label; None for one that is not kept."""

    probe: Probe
    names: tuple[str | None, ...]


@dataclass(eq=False)
class Parts:
    """Row statistics gathered for one `Together`, with a name for each of their labels."""

    parts: list[RowMean] = field(default_factory=list)
    names: list[str | None] = field(default_factory=list)

    def add(self, probe: RowMean, *names: str | None) -> None:
        """One more statistic."""
        self.parts.append(probe)
        self.names += names

    def plain(self) -> Iterator[Reads]:
        """What reads them."""
        if self.parts:
            yield Reads(probes.Together(self.parts), tuple(self.names))

    def norm_weighted(self) -> Iterator[Reads]:
        """What reads them of ‖αf(x)‖."""
        if self.parts:
            names = tuple(None if name is None else f"{name}_norm" for name in self.names)
            yield Reads(probes.NormWeighted(probes.Together(self.parts)), names)


def reads(text: Text, rows: slice, config: Config, norm_weighted: bool) -> list[Reads]:
    """Everything that is read of some windows. Names of controls begin with ``control:``, offsets with ``share:`` and
    ``mass:``, distances with ``bin:``."""
    sequences, sink = text.select(rows)
    anywhere, in_order, controls, controls_in_order = Parts(), Parts(), Parts(), Parts()
    anywhere.add(probes.PositionMass([0], first_position=1), "first_position")
    controls.add(probes.PositionMass([1], first_position=2), "control:first_position")
    tokens = sequences.tokens.masked_fill(~text.words[rows], -1)
    others = text.sequences.tokens.masked_fill(~text.words, -1)[text.others[rows]]
    for metric, shift in (("duplicate_token", 0), ("prefix_matching", 1)):
        in_order.add(probes.LabelMatch(tokens, shift), metric)
        controls_in_order.add(probes.LabelMatch(others, shift), f"control:{metric}")
    in_order.add(probes.OffsetMass([0, 1, -1], first_position=1), "current_token", "previous_token", "next_token")
    if text.labels is not None:
        _labelled(text, rows, anywhere, controls)
    at_offsets = [-offset for offset in OFFSETS]  # probes count backwards
    beside = [
        Reads(probes.OffsetMass(at_offsets, first_position=1), tuple(f"mass:{o}" for o in OFFSETS)),
        Reads(
            probes.StrongestOffset(-8, 8, where_possible=True, first_position=1), tuple(f"share:{-o}" for o in OFFSETS)
        ),
        _distances(sequences.n_positions),
    ]
    rest = text.sequences.valid[rows] & ~sink
    shapes = [
        Reads(probes.Entropy(), ("entropy",)),
        Reads(probes.RelativeEntropy(), ("relative_entropy",)),
        Reads(probes.WithoutKeys(probe=probes.Entropy(), keys=sink), ("entropy_without_sink",)),
        Reads(probes.MaxWeight(), ("max_weight",)),
        Reads(probes.LargestAmong(keys=rest & ~_separators(text, rows)), ("confidence",)),
        Reads(probes.ExpectedDistance(), ("expected_distance",)),
        Reads(probes.WithoutKeys(probe=probes.ExpectedDistance(), keys=sink), ("expected_distance_without_sink",)),
    ]
    found = [*shapes, *beside, *anywhere.plain(), *in_order.plain(), *controls.plain(), *controls_in_order.plain()]
    if norm_weighted:
        anywhere.add(probes.Entropy(), "entropy")
        anywhere.add(probes.MaxWeight(), "max_weight")
        found += [*anywhere.norm_weighted(), *in_order.norm_weighted()]
    return found


def _labelled(text: Text, rows: slice, anywhere: Parts, controls: Parts) -> None:
    """Measures that need to know what a token is, and the same labels where they do not belong."""
    labels = text.labels
    assert labels is not None
    words, position = text.words[rows], torch.arange(text.sequences.n_positions)
    of_sets = [
        getattr(labels, name) & (text.words if name not in ("special", "separator") else True) for name in KEY_SETS
    ]
    members = torch.stack(of_sets, -1)
    moved = torch.stack([_moved(each) if i < 2 else each[text.others] for i, each in enumerate(of_sets)], -1)
    moved = moved[rows] & ~members[rows] & words[..., None]
    anywhere.add(probes.SetMass(members=members[rows]), *KEY_SETS)
    controls.add(probes.SetMass(members=moved), *(f"control:{name}" for name in KEY_SETS))
    rare = labels.rare.masked_fill(labels.rare == position[:, None], -1)
    targets = {
        "rare_word": (rare[rows], rare[text.others[rows]]),
        "bracket_match": (labels.bracket[rows, :, None], _beside(labels.bracket[rows])[..., None]),
        "quote_match": (labels.quote[rows, :, None], _beside(labels.quote[rows])[..., None]),
    }
    for metric, (own, other) in targets.items():
        anywhere.add(probes.TargetMass(own), metric)
        controls.add(probes.TargetMass(other), f"control:{metric}")


def _moved(members: Tensor) -> Tensor:
    """Labels moved by one token: towards the beginning, but for those of the first position."""
    earlier = torch.zeros_like(members)
    earlier[:, :-1] = members[:, 1:]
    earlier[:, 1] |= members[:, 0]
    return earlier


def _beside(partner: Int[Tensor, "sequence position"]) -> Int[Tensor, "sequence position"]:
    """The token before the partner, or behind it where that one does not exist or is the query itself."""
    n = partner.shape[1]
    position = torch.arange(n).expand_as(partner)
    before, behind = partner - 1, partner + 1
    other = torch.where((before < 0) | (before == position), behind, before)
    return other.masked_fill((partner < 0) | (other >= n), -1)


def _separators(text: Text, rows: slice) -> Tensor:
    return torch.zeros_like(text.sink[rows]) if text.labels is None else text.labels.separator[rows]


def bins(n_positions: int) -> list[tuple[int, int]]:
    """Inclusive ranges of distance that cover a window: 0, 1, 2–3, 4–7, …; and the same forward, negative."""
    n = max(1, (n_positions - 1).bit_length()) + 1
    back = [(0, 0), *((2 ** (b - 1), 2**b - 1) for b in range(1, n))]
    return [*back, *((-high, -low) for low, high in back[1:])]


def _distances(n_positions: int) -> Reads:
    ranges = bins(n_positions)
    probe = probes.DistanceHistogram((len(ranges) + 1) // 2, signed=True)
    return Reads(probe, tuple(f"bin:{low}:{high}" for low, high in ranges))


def measure(model: HookedModel, given: Inputs, config: Config, work: Workspace) -> dict[str, pd.DataFrame]:
    """Every measure of every head in every window.

    Returns:
        ``scores``: ``data, site, layer, head, sequence`` and a column for each measure, for its control (``control:``)
        and its chance (``chance:``), for shares and masses at offsets, and for distances. NaN where no row is eligible.
    """
    has_norms = why_no_norms(model)
    if has_norms:
        work.skip("norm-weighted attention", has_norms)
    spare, parts = without_logits(model), []
    todo = [(text, rows) for text in given.texts.values() for rows in batches(text, config)]
    for text, rows in work.progress(todo, "batches of text"):
        wanted = reads(text, rows, config, norm_weighted=not has_norms)
        received = probes.MassReceived(until_position=config.sink_length)
        sequences, _ = text.select(rows)
        run = model.run(
            **pass_arguments(model, sequences), probes=[*(each.probe for each in wanted), received], **spare
        )
        parts += [table.assign(data=text.data) for table in read(run, wanted, received, rows.start, config)]
    return {"scores": pd.concat(parts, ignore_index=True)}


def read(
    run: Run, wanted: Sequence[Reads], received: probes.MassReceived, first: int, config: Config
) -> Iterator[pd.DataFrame]:
    """What a run read, a table for each site: ``site, layer, head, sequence`` and a column for each measure."""
    chances = [run.chance(each.probe) for each in wanted]
    for site in run.sites:
        columns: dict[str, NDArray[np.float64]] = {}
        size: tuple[int, int] | None = None
        for each, chance in zip(wanted, chances, strict=True):
            reading = run.readings(each.probe).get(site.name)
            if reading is None:
                continue
            size = (reading.values.shape[0], reading.values.shape[1])
            columns |= _columns(reading.values, chance.get(site.name), each.names)
        mass = run.readings(received)[site.name]
        size = size or (mass.values.shape[0], mass.values.shape[1])
        uniform = run.chance(received)[site.name].expand_as(mass.values)
        for metric, value in _sinks(mass.values, mass.n, config).items():
            columns[metric] = _numbers(value)
        for metric, value in _sinks(uniform, mass.n, config).items():
            columns[f"chance:{metric}"] = _numbers(value)
        n, n_heads = size
        yield pd.DataFrame(
            {
                "site": site.name,
                "layer": site.layer,
                "head": np.tile(np.arange(n_heads), n),
                "sequence": np.repeat(np.arange(first, first + n), n_heads),
                **columns,
            }
        )


def _columns(values: Tensor, chance: Tensor | None, names: Sequence[str | None]) -> dict[str, NDArray[np.float64]]:
    wide = values.reshape(*values.shape[:2], -1)
    at_chance = None if chance is None else chance.reshape(*chance.shape[:2], -1).expand_as(wide)
    found = {}
    for label, name in enumerate(names):
        if name is not None:
            found[name] = _numbers(wide[..., label])
            if at_chance is not None and not name.startswith("control:"):
                found[f"chance:{name}"] = _numbers(at_chance[..., label])
    return found


def _sinks(mass: Tensor, n: Tensor, config: Config) -> dict[str, Tensor]:
    """Gu et al.'s measure of a window: 1 where a key receives more than ε on average; of the first, and of any other
    that at least half of the rows may read."""
    readable = n.expand_as(mass) > 0
    first = readable.int().argmax(-1, keepdim=True)
    at_first = mass.gather(-1, first)[..., 0]
    most = n.expand_as(mass).amax(-1, keepdim=True)
    elsewhere = (2 * n >= most) & readable & (torch.arange(mass.shape[-1], device=mass.device) != first)
    highest = mass.masked_fill(~elsewhere, -1.0).amax(-1)
    epsilon = config.sink_epsilon
    return {
        "sink": (at_first > epsilon).double().masked_fill(at_first.isnan(), torch.nan),
        "sink_elsewhere": (highest > epsilon).double().masked_fill(~elsewhere.any(-1), torch.nan),
    }


def _numbers(values: Tensor) -> NDArray[np.float64]:
    return values.detach().double().cpu().numpy().ravel()


def why_no_norms(model: HookedModel) -> str:
    """Why the norms of what heads write are not known; "" where they are."""
    for site in model.sites:
        if site.source == "softmax":
            return f"{site.name} computes its own attention, and keeps its values to itself"
        try:
            site.weights()
        except UserError as reason:
            return str(reason)
    return ""


def metrics(model: HookedModel) -> tuple[str, ...]:
    """The scores of the table ``heads`` that are read off the attention, in its order."""
    twins = () if why_no_norms(model) else ("entropy_norm", "max_weight_norm", *(f"{metric}_norm" for metric in MASSES))
    return (*SHAPES, *MASSES, *twins)


def not_applicable(site: AttentionSite, metric: str) -> str:
    """Why a score is not defined at a site whatever is read; "" where it is."""
    ordered = (
        "current_token",
        "duplicate_token",
        "previous_token",
        "next_token",
        "prefix_matching",
        "expected_distance",
    )
    if site.kind == "cross" and metric.startswith(ordered):
        return "not applicable: cross-attention reads another sequence, in which nothing is before or after the query"
    return ""
