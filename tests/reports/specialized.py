"""Run folders with made-up tables of `head-specialization`, in which every head's kind is planted."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from interp.results import Result
from tests.reports.synthetic import PASSAGE

Head = tuple[str, int, int]  # site, layer, head
THRESHOLDS = {
    "positional": 0.9, "previous_token": 0.5, "current_token": 0.5, "sink": 0.3, "separator": 0.6,
    "duplicate_token": 0.4, "induction": 0.4, "rare_word": 0.4, "bracket_matching": 0.4, "syntactic": 0.1,
    "coreference": 0.1, "broad": 0.78, "redundant": 0.05,
}  # fmt: skip
METRIC_OF = {
    "positional": "share_at_offset", "previous_token": "previous_token", "current_token": "current_token",
    "sink": "sink", "separator": "separator", "duplicate_token": "duplicate_token", "induction": "prefix_matching",
    "rare_word": "rare_word", "bracket_matching": "bracket_match", "syntactic": "accuracy", "coreference": "accuracy",
    "broad": "relative_entropy", "redundant": "divergence",
}  # fmt: skip
METRICS = (
    "entropy", "relative_entropy", "max_weight", "expected_distance", "first_position", "sink", "special", "separator",
    "punctuation", "current_token", "duplicate_token", "previous_token", "next_token", "rare_word", "number",
    "bracket_match", "quote_match", "sentence_start", "prefix_matching",
)  # fmt: skip
RELATIONS = (
    ("det", 0.59), ("amod", 0.75), ("nsubj", 0.37), ("obj", 0.36), ("case", 0.38), ("aux", 0.48), ("compound", 0.82),
    ("advmod", 0.46), ("mark", 0.52), ("nmod:poss", 0.58),
)  # fmt: skip


@dataclass(frozen=True)
class Model:
    """Sizes of a made-up model, and where its heads are."""

    n_layers: int = 30
    n_heads: int = 9
    stacks: tuple[str, ...] = ("blocks.{}.attn",)
    causal: bool = True
    share: float = 0.55  # of heads that are called something
    documents: int = 12

    @property
    def heads(self) -> list[Head]:
        return [
            (stack.format(layer), layer, head)
            for stack in self.stacks
            for layer in range(self.n_layers)
            for head in range(self.n_heads)
        ]


DECODER = Model()
ENCODER = Model(6, 12, causal=False)
SMALL = Model(2, 4, share=0.8)
BOTH = Model(
    6, 8, ("encoder_blocks.{}.attn", "decoder_blocks.{}.self_attn", "decoder_blocks.{}.cross_attn"), causal=False
)
LARGE = Model(80, 64)
NOTHING = Model(2, 4, share=0.0)


def planted(model: Model) -> dict[Head, list[str]]:
    """What each head is called; sinks late, neighbours early, as in trained models."""
    random = np.random.default_rng(1)
    early = ["previous_token", "current_token", "duplicate_token", "positional", "broad", "separator"]
    late = [
        "sink",
        "sink",
        "sink",
        "induction",
        "syntactic",
        "coreference",
        "bracket_matching",
        "rare_word",
        "redundant",
    ]
    found: dict[Head, list[str]] = {}
    for head in model.heads:
        if random.random() > model.share:
            continue
        depth = head[1] / max(model.n_layers - 1, 1)
        kinds = [str(random.choice(late if random.random() < depth else early))]
        if random.random() < 0.25:
            kinds.append(str(random.choice(["sink", "redundant", "broad", "syntactic"])))
        found[head] = list(dict.fromkeys(kinds))
    return found


def tables(model: Model) -> dict[str, pd.DataFrame]:
    random = np.random.default_rng(0)
    called = planted(model)
    made = {
        "heads": _heads(model, called, random),
        "kinds": _kinds(model, called, random),
        "distances": _distances(model, called, random),
        "offsets": _offsets(model, random),
        "relations": _relations(model, random),
        "coreference": _coreference(model, random),
        "composition": _composition(model, random),
        "stability": _stability(model, random),
    }
    groups, clusterings, divergences = _groups(model, called, random)
    made |= {"groups": groups, "clusterings": clusterings, "divergences": divergences}
    made["tokens"] = _tokens()
    made["patterns"] = _patterns(called, made["tokens"], random)
    return made


def _columns(heads: list[Head]) -> dict[str, list]:
    return {name: [head[i] for head in heads] for i, name in enumerate(("site", "layer", "head"))}


def _heads(model: Model, called: dict[Head, list[str]], random: np.random.Generator) -> pd.DataFrame:
    frames = []
    n = len(model.heads)
    depth = np.array([layer / max(model.n_layers - 1, 1) for _, layer, _ in model.heads])
    for metric in METRICS:
        if metric == "entropy":
            value = np.clip(random.normal(3.2 - 1.8 * depth, 0.5), 0.05, 4.2)
        elif metric == "expected_distance":
            value = random.gamma(2, 8, n)
        elif metric == "relative_entropy":
            value = np.clip(random.normal(0.65 - 0.3 * depth, 0.1), 0.02, 0.99)
        elif metric in ("first_position", "sink"):
            value = np.clip(random.beta(1 + 4 * depth, 3), 0, 1)
        else:
            value = random.beta(0.6, 9, n)
        kinds = {METRIC_OF[kind]: kind for kind in THRESHOLDS}
        if metric in kinds:
            for i, head in enumerate(model.heads):
                if kinds[metric] in called.get(head, []):
                    value[i] = THRESHOLDS[kinds[metric]] + (1 - THRESHOLDS[kinds[metric]]) * random.uniform(0.3, 0.9)
        frames.append(_scored(model, metric, "text", value))
        if metric in ("first_position", "previous_token", "punctuation", "separator", "entropy"):
            smaller = value * np.where(metric == "first_position", 0.12 + 0.2 * depth, 0.9)
            frames.append(_scored(model, f"{metric}_norm", "text", smaller))
    frames.append(_scored(model, "copying_eigenvalues", "weights", np.clip(random.normal(0, 0.3, n), -1, 1)))
    return pd.concat(frames, ignore_index=True)


def _scored(model: Model, metric: str, data: str, value: np.ndarray) -> pd.DataFrame:
    half = 0.02 + 0.04 * np.abs(value)
    chance = {"entropy": 3.9, "relative_entropy": 1.0, "expected_distance": 32.0}.get(metric, 0.03)
    return pd.DataFrame(
        {**_columns(model.heads), "metric": metric, "data": data, "value": value, "ci_low": value - half,
         "ci_high": value + half, "chance": chance, "p_corrected": 0.001, "n": model.documents, "control": 0.01,
         "half": "all", "note": ""}
    )  # fmt: skip


def _kinds(model: Model, called: dict[Head, list[str]], random: np.random.Generator) -> pd.DataFrame:
    rows = []
    for head in model.heads:
        for kind, threshold in THRESHOLDS.items():
            is_called = kind in called.get(head, [])
            span = (0.2, 0.9) if is_called else (-0.8, -0.1)
            step = random.uniform(*span)
            value = threshold + step * ((1 - threshold) if step > 0 else threshold)
            if kind == "redundant":
                value = threshold * (random.uniform(0.2, 0.8) if is_called else random.uniform(1.5, 6))
            if kind in ("syntactic", "coreference"):
                value = random.uniform(0.5, 0.95) if is_called else random.uniform(0.1, 0.4)
            detail = {"positional": "-2", "syntactic": "det dependent→head", "redundant": f"L{head[1]}H0"}.get(kind, "")
            why = f"{value:.3f}, {'above' if is_called else 'not above'} {threshold}"
            rows.append(
                (
                    *head,
                    kind,
                    METRIC_OF[kind],
                    detail,
                    value,
                    value - 0.03,
                    threshold,
                    0.03,
                    0.01,
                    0.001,
                    is_called,
                    why,
                )
            )
    names = ["site", "layer", "head", "kind", "metric", "detail", "value", "simultaneous_low", "threshold", "chance",
             "control", "p_corrected", "called", "reason"]  # fmt: skip
    return pd.DataFrame(rows, columns=names)


def _distances(model: Model, called: dict[Head, list[str]], random: np.random.Generator) -> pd.DataFrame:
    bins = [(0, 0), *((2 ** (b - 1), 2**b - 1) for b in range(1, 8))]
    ahead = [] if model.causal else [(-high, -low) for low, high in bins[1:]]
    rows = []
    for head in [head for head in model.heads if "cross" not in head[0]]:
        mass = random.dirichlet(np.linspace(2, 0.4, len(bins) + len(ahead)))
        if "previous_token" in called.get(head, []):
            mass = 0.2 * mass
            mass[1] += 0.8
        rows += [(*head, low, high, each) for (low, high), each in zip([*bins, *ahead], mass, strict=True)]
    return pd.DataFrame(rows, columns=["site", "layer", "head", "low", "high", "mass"])


def _offsets(model: Model, random: np.random.Generator) -> pd.DataFrame:
    rows = []
    for head in [head for head in model.heads if "cross" not in head[0]]:
        share = random.dirichlet(np.full(18, 0.4))
        rows += [
            (*head, offset, share[i], share[i] * 0.7, 0.02, model.documents)
            for i, offset in enumerate(range(-8, 1 if model.causal else 9))
        ]
    return pd.DataFrame(rows, columns=["site", "layer", "head", "offset", "share", "mass", "chance", "n"])


def _relations(model: Model, random: np.random.Generator) -> pd.DataFrame:
    rows = []
    heads = [head for head in model.heads if "cross" not in head[0]]
    for relation, baseline in RELATIONS:
        for direction in ("dependent→head", "head→dependent"):
            best = int(random.integers(len(heads)))
            for i in sorted({best, *random.integers(len(heads), size=3).tolist()}):
                gain = random.uniform(-0.05, 0.35) if i == best else random.uniform(-0.3, 0.02)
                accuracy = float(np.clip(baseline + gain, 0.02, 0.98))
                gain = accuracy - baseline
                rows.append(
                    (*heads[i], relation, direction, accuracy, accuracy - 0.05, min(accuracy + 0.05, 1.0), baseline,
                     1 if direction == "dependent→head" else -1, gain, gain - 0.05, gain + 0.05, 0.001,
                     int(random.integers(60, 900)), random.uniform(0.2, 0.95) if model.causal else 1.0, i == best,
                     i == best and gain > 0.1)
                )  # fmt: skip
    names = ["site", "layer", "head", "relation", "direction", "accuracy", "ci_low", "ci_high", "baseline",
             "baseline_offset", "difference", "difference_low", "difference_high", "p_corrected", "n", "possible",
             "best", "called"]  # fmt: skip
    return pd.DataFrame(rows, columns=names)


def _coreference(model: Model, random: np.random.Generator) -> pd.DataFrame:
    heads = [head for head in model.heads if "cross" not in head[0]]
    accuracy = np.clip(random.normal(0.3, 0.1, len(heads)), 0.02, 0.6)
    accuracy[len(heads) // 2] = 0.72
    return pd.DataFrame(
        {**_columns(heads), "accuracy": accuracy, "ci_low": accuracy - 0.04, "ci_high": accuracy + 0.04,
         "nearest": 0.31, "head_match": 0.52, "difference": accuracy - 0.52, "difference_low": accuracy - 0.57,
         "difference_high": accuracy - 0.47, "p_corrected": 0.01, "n": 240, "best": accuracy == accuracy.max(),
         "called": accuracy > 0.66}
    )  # fmt: skip


def _composition(model: Model, random: np.random.Generator) -> pd.DataFrame:
    rows = [
        (a, h, b, g, path, float("nan"), 0.03 + random.gamma(1, 0.02), 0.03)
        for a in range(min(model.n_layers - 1, 3)) for h in range(2) for b in range(a + 1, min(model.n_layers, 4))
        for g in range(2) for path in ("query", "key", "value")
    ]  # fmt: skip
    names = ["source_layer", "source_head", "target_layer", "target_head", "path", "distance", "value", "expected"]
    table = pd.DataFrame(rows, columns=names)
    stack = model.stacks[0]
    for end in ("source", "target"):
        table.insert(0, f"{end}_site", [stack.format(layer) for layer in table[f"{end}_layer"]])
    return table.assign(excess=table["value"] - table["expected"], note="")


def _stability(model: Model, random: np.random.Generator) -> pd.DataFrame:
    rows = []
    for metric in METRICS:
        for between, least in (("halves", 0.85), ("text kinds", 0.5)):
            rho = random.uniform(least, 0.99)
            rows.append((metric, between, rho, rho - 0.08, min(rho + 0.05, 1.0), len(model.heads)))
    return pd.DataFrame(rows, columns=["metric", "between", "spearman", "ci_low", "ci_high", "n_heads"])


def _groups(
    model: Model, called: dict[Head, list[str]], random: np.random.Generator
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    from reports import words

    groups, clusterings, pairs = [], [], []
    for stack in dict.fromkeys(words.stack_name(site) for site, _, _ in model.heads):
        heads = [head for head in model.heads if words.stack_name(head[0]) == stack]
        cluster = random.choice(3, len(heads), p=[0.6, 0.25, 0.15])
        centres = np.array([[0.1, 0.0], [-0.25, 0.12], [0.05, -0.3]])
        places = centres[cluster] + random.normal(0, 0.06, (len(heads), 2))
        medoid = [i == np.flatnonzero(cluster == c)[0] for i, c in enumerate(cluster)]
        groups.append(
            pd.DataFrame(
                {**_columns(heads), "stack": stack, "cluster": cluster, "medoid": medoid, "silhouette": 0.3,
                 "stability": np.array([0.93, 0.81, 0.6])[cluster], "x": places[:, 0], "y": places[:, 1]}
            )
        )  # fmt: skip
        clusterings.append(
            pd.DataFrame(
                {"stack": stack, "clusters": range(2, 7), "silhouette": [0.2, 0.31, 0.2, 0.18, 0.1],
                 "stability": [0.9, 0.88, 0.7, 0.6, 0.5], "ci_low": 0.4, "ci_high": 0.98, "stress": 0.19,
                 "chosen": [False, True, False, False, False]}
            )
        )  # fmt: skip
        first, second = np.triu_indices(len(heads), 1)
        if len(first) > 40_000:
            first, second = first[:40_000], second[:40_000]
        jsd = np.clip(np.hypot(*(places[first] - places[second]).T), 0, 0.69)
        ends = {f"{name}_{side}": np.array([head[i] for head in heads])[index]
                for side, index in (("a", first), ("b", second))
                for i, name in enumerate(("site", "layer", "head"))}  # fmt: skip
        pairs.append(
            pd.DataFrame(
                {**ends, "jsd": jsd, "ci_low": 0.9 * jsd, "ci_high": 1.1 * jsd, "jsd_without_sink": jsd, "n": 12}
            )
        )
    return (
        pd.concat(groups, ignore_index=True),
        pd.concat(clusterings, ignore_index=True),
        pd.concat(pairs, ignore_index=True),
    )


def _tokens() -> pd.DataFrame:
    starts, texts = (0, 15, 34), []
    for sequence, (start, stop) in enumerate(zip(starts, (*starts[1:], len(PASSAGE)), strict=True)):
        words = ["<|begin|>", *(" " + word for word in PASSAGE[start:stop])]
        texts.append(
            pd.DataFrame(
                {"data": "text", "sequence": sequence, "position": range(len(words)), "token": range(len(words)),
                 "text": words}
            )
        )  # fmt: skip
    return pd.concat(texts, ignore_index=True)


def _patterns(called: dict[Head, list[str]], tokens: pd.DataFrame, random: np.random.Generator) -> pd.DataFrame:
    rows = []
    for head in list(called)[:24]:
        for sequence, text in tokens.groupby("sequence"):
            for query in range(len(text)):
                weight = random.dirichlet(np.full(query + 1, 0.25))
                if "previous_token" in called[head] and query:
                    weight = 0.2 * weight
                    weight[query - 1] += 0.8
                rows += [(*head, "text", sequence, query, int(key), float(weight[key]))
                         for key in np.argsort(weight)[-3:] if weight[key] > 0.02]  # fmt: skip
    columns = ["site", "layer", "head", "data", "sequence", "query", "key", "weight"]
    return pd.DataFrame(rows, columns=columns)


def result(model: Model, name: str = "tiny-lantern") -> Result:
    """A result as an analysis of a made-up model would leave it."""
    about = {
        "name": name, "quantisation": None, "n_layers": model.n_layers, "n_heads": model.n_heads, "dtype": "float32",
        "device": "cpu",
    }  # fmt: skip
    config = {"beginning": "token", "treebank": "en_ewt-dev.conllu", "budget": "report", "seed": 0,
              "sink_epsilon": 0.3, "positional_share": 0.9, "syntactic_margin": 0.1}  # fmt: skip
    inputs = {
        "text": {"what": "36 sequences of 128 tokens from 12 documents of the sample text.", "sha256": "0" * 64},
        "treebank": {"what": "600 sentences of en_ewt-dev.conllu.", "sha256": "1" * 64},
    }
    provenance = {
        "model": about, "config": config, "seed": 0, "device": "cpu", "dtype": "float32", "inputs": inputs,
        "command": f"interp run head-specialization {name}", "started": "2026-01-02T03:04:05+00:00",
        "wall_seconds": 80.0, "peak_memory_bytes": 1_500_000_000, "versions": {"interp-attention": "0.1.0"},
        "platform": "Linux", "python": "3.11.7", "left_out": [], "notes": [],
    }  # fmt: skip
    return Result("head-specialization", tables(model), provenance)
