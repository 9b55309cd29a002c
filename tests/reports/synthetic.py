"""Run folders with made-up tables of `induction-heads`, in which the answer is planted."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from interp.results import Result

WORDS = re.findall(
    r"\S+",
    """river bank copper lantern walked slowly under seven bridges while rain fell on tin roofs and a dog slept by the
    oven door until morning came with bread salt apples letters from two sisters who sailed north last winter carrying
    maps ink ropes candles wool nets clocks paper seeds glass honey flour drums flags stones coal milk""",
)
PASSAGE = re.findall(
    r"\S+",
    """Ada Quill kept the lighthouse at Morrow Point . Every evening Ada Quill climbed the ninety steps , trimmed the
    lamp and wrote one line in the log . The log of Morrow Point fills forty books . In the last of them Ada Quill
    notes the first steam ship to pass Morrow Point without a sail .""",
)


THRESHOLD = 0.4


@dataclass(frozen=True)
class Planted:
    """What a made-up model does: for each head that does something, how strongly (a weight in [0, 1])."""

    n_layers: int = 30
    n_heads: int = 9
    period: int = 24
    sequences: int = 32
    induction: dict[tuple[int, int], float] = field(
        default_factory=lambda: {
            (18, 6): 0.90, (17, 3): 0.78, (17, 4): 0.71, (20, 1): 0.58, (22, 5): 0.54, (14, 2): 0.41, (25, 0): 0.36,
            (12, 7): 0.31, (27, 8): 0.27,
        }
    )  # fmt: skip
    previous_token: dict[tuple[int, int], float] = field(
        default_factory=lambda: {(16, 2): 0.93, (9, 4): 0.81, (3, 0): 0.55}
    )
    duplicate_token: dict[tuple[int, int], float] = field(default_factory=lambda: {(2, 4): 0.62, (1, 7): 0.44})
    seed: int = 0

    @property
    def heads(self) -> list[tuple[int, int]]:
        return [(layer, head) for layer in range(self.n_layers) for head in range(self.n_heads)]


SMALL = Planted(2, 4, 12, 16, {(1, 1): 0.83, (1, 3): 0.46}, {(0, 2): 0.88}, {(0, 0): 0.52})
LARGE = Planted(
    80, 64, 48, 32,
    {(40 + 3 * i, (11 * i) % 64): 0.95 - 0.05 * i for i in range(12)},
    {(5 * i + 1, (7 * i) % 64): 0.9 - 0.08 * i for i in range(8)},
    {(i, (13 * i) % 64): 0.7 - 0.1 * i for i in range(5)},
)  # fmt: skip
NOTHING = Planted(2, 4, 12, 16, {}, {}, {})


def name(head: tuple[int, int]) -> str:
    return f"L{head[0]}H{head[1]}"


def tables(planted: Planted, texts: Sequence[str] | None = None) -> dict[str, pd.DataFrame]:
    """All tables of `induction-heads`; `texts` replaces the words that stand for tokens."""
    random = np.random.default_rng(planted.seed)
    heads = _heads(planted, random)
    made = {
        "heads": heads,
        "kinds": _kinds(heads),
        "loss_by_position": _loss(planted, random),
        "behaviour": _behaviour(planted),
        "ablation": _ablation(planted, random),
        "composition": _composition(planted, random),
        "reach": _reach(planted, random),
        "tokens": _tokens(planted, random, texts or WORDS),
    }
    made["patterns"] = _patterns(planted, made["tokens"], random)
    return made


def _heads(planted: Planted, random: np.random.Generator) -> pd.DataFrame:
    shape = (planted.n_layers, planted.n_heads)
    copying = random.normal(-0.7, 0.15, shape)
    eigenvalues = random.normal(0, 0.15, shape)
    for head, value in planted.induction.items():
        copying[head], eigenvalues[head] = 0.35 + 0.6 * value, 0.9 * value
    nothing: dict[tuple[int, int], float] = {}
    repeats, previous = 1.4 / planted.period, 0.04
    grids = {
        ("prefix_matching", "repeated"): (_scores(shape, random, planted.induction, 0.01), repeats),
        ("duplicate_token", "repeated"): (_scores(shape, random, planted.duplicate_token, 0.01), repeats),
        ("previous_token", "repeated"): (_scores(shape, random, planted.previous_token, 0.03), previous),
        ("current_token", "repeated"): (random.beta(1, 14, shape), previous),
        ("first_position", "repeated"): (random.beta(2, 3, shape), previous),
        ("prefix_matching", "unrepeated"): (_scores(shape, random, nothing, 0.004), repeats),
        ("prefix_matching", "text"): (0.5 * _scores(shape, random, planted.induction, 0.01), 0.06),
        ("previous_token", "text"): (0.9 * _scores(shape, random, planted.previous_token, 0.05), 0.02),
        ("first_position", "text"): (random.beta(2, 2, shape), 0.02),
        ("copying", "weights"): (np.clip(copying, -1, 1), -0.92),
        ("copying_eigenvalues", "weights"): (np.clip(eigenvalues, -1, 1), 0.0),
    }
    frames = [_scored(planted, metric, data, grid, chance) for (metric, data), (grid, chance) in grids.items()]
    table = pd.concat(frames, ignore_index=True)
    controls = table.loc[(table["metric"] == "prefix_matching") & (table["data"] == "unrepeated"), "value"]
    for metric in ("prefix_matching", "duplicate_token", "previous_token"):
        rows = (table["metric"] == metric) & (table["data"] == "repeated")
        table.loc[rows, "control"] = controls.to_numpy()
        table.loc[rows, "p_corrected"] = np.where(table.loc[rows, "value"] > 0.2, 2e-4, 0.4)
    return table


def _scores(
    shape: tuple[int, int], random: np.random.Generator, strong: dict[tuple[int, int], float], floor: float
) -> np.ndarray:
    values = np.minimum(random.gamma(0.6, floor, size=shape), 0.19)
    for head, value in strong.items():
        values[head] = value
    return values


def _scored(planted: Planted, metric: str, data: str, grid: np.ndarray, chance: float) -> pd.DataFrame:
    value = grid.ravel()
    layer, head = np.divmod(np.arange(value.size), planted.n_heads)
    low, high = (-1.0, 1.0) if data == "weights" else (0.0, 1.0)
    half = 0.01 + 0.05 * np.sqrt(np.abs(value))
    has_interval = metric != "copying_eigenvalues"
    return pd.DataFrame(
        {
            "site": [f"blocks.{i}.attn" for i in layer], "layer": layer, "head": head, "metric": metric, "data": data,
            "value": value, "ci_low": np.clip(value - half, low, high) if has_interval else np.nan,
            "ci_high": np.clip(value + half, low, high) if has_interval else np.nan, "chance": chance,
            "control": np.nan, "p_corrected": np.nan, "n": planted.sequences if has_interval else 0, "note": "",
            "null_low": np.nan if has_interval else -0.3, "null_high": np.nan if has_interval else 0.3,
        }
    )  # fmt: skip


def _kinds(heads: pd.DataFrame) -> pd.DataFrame:
    kinds = {"induction": "prefix_matching", "previous_token": "previous_token", "duplicate_token": "duplicate_token"}
    frames = []
    for kind, metric in kinds.items():
        rows = heads.loc[(heads["metric"] == metric) & (heads["data"] == "repeated")]
        low = (rows["value"] - 0.06).clip(lower=0)
        called = low > THRESHOLD
        said = zip(rows["value"], low, called, strict=True)
        reason = [
            f"{value:.3f}, at least {least:.3f} with all heads considered, above {THRESHOLD}" if is_called
            else f"{value:.3f}, but its lower end {least:.3f} is not above {THRESHOLD}"
            for value, least, is_called in said
        ]  # fmt: skip
        columns = ["site", "layer", "head", "metric", "value", "chance", "control", "p_corrected"]
        frames.append(
            rows.filter(columns).assign(
                kind=kind, simultaneous_low=low, threshold=THRESHOLD, called=called, reason=reason
            )
        )
    return pd.concat(frames, ignore_index=True)


def _loss(planted: Planted, random: np.random.Generator) -> pd.DataFrame:
    strength = max([*planted.induction.values(), 0.0])
    position = np.arange(1, 2 * planted.period)
    copy, within = np.divmod(position, planted.period)
    frames = []
    for data, drop in (("repeated", strength * 11), ("unrepeated", 0.0)):
        loss = np.where(copy == 0, 13.8, 13.6 - drop * (1 - np.exp(-within / 3)))
        loss = loss + random.normal(0, 0.25, position.size)
        frames.append(
            pd.DataFrame(
                {"data": data, "copy": copy, "position": position, "loss": loss, "ci_low": loss - 0.6,
                 "ci_high": loss + 0.6, "n": planted.sequences}
            )
        )  # fmt: skip
    return pd.concat(frames, ignore_index=True)


def _behaviour(planted: Planted) -> pd.DataFrame:
    gain = 11 * max([*planted.induction.values(), 0.0])
    rows = [
        ("loss_first_copy", "repeated", 13.8, 0.2), ("loss_later_copies", "repeated", 13.8 - gain, 0.4),
        ("copying_gain", "repeated", gain, 0.4), ("in_context_learning", "text", -0.31, 0.12),
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["metric", "data", "value", "half"])
    frame["ci_low"], frame["ci_high"] = frame["value"] - frame["half"], frame["value"] + frame["half"]
    return frame.drop(columns="half").assign(n=planted.sequences, note="")


def _ablation(planted: Planted, random: np.random.Generator) -> pd.DataFrame:
    ranked = sorted(planted.induction, key=planted.induction.__getitem__, reverse=True)
    effects = {"resample": 1.0, "mean": 0.9, "zero": 1.15, "pattern_preserving": 0.7}
    rows = []
    for count in [n for n in (1, 3, 5) if n <= len(ranked)]:
        for ablation, scale in effects.items():
            change = scale * (1.1 * count**0.8)
            rows.append((ablation, ranked[:count], "top", 0, change, 0.3))
            for draw in range(3):
                picked = [planted.heads[i] for i in random.choice(len(planted.heads), count, replace=False)]
                rows.append((ablation, picked, "random", draw, random.normal(0.04, 0.05), 0.08))
    return pd.DataFrame(
        [
            {"ablation": ablation, "heads": " ".join(map(name, heads)), "n_heads": len(heads), "chosen": chosen,
             "draw": draw, "loss": 4.1 + change, "loss_change": change, "ci_low": change - half,
             "ci_high": change + half, "n": planted.sequences, "note": ""}
            for ablation, heads, chosen, draw, change, half in rows
        ],
        columns=["ablation", "heads", "n_heads", "chosen", "draw", "loss", "loss_change", "ci_low", "ci_high", "n",
                 "note"],
    )  # fmt: skip


def _composition(planted: Planted, random: np.random.Generator) -> pd.DataFrame:
    rows = []
    for source in planted.previous_token:
        for target, strength in list(planted.induction.items())[:6]:
            if source[0] >= target[0]:
                continue
            strong = source == max(planted.previous_token)
            for path, scale in (("key_input", 0.6), ("total", 0.75)):
                change = -strength * (scale if strong else 0.05) + random.normal(0, 0.01)
                rows.append((*source, *target, path, strength + change, change))
    frame = pd.DataFrame(
        rows,
        columns=["source_layer", "source_head", "target_layer", "target_head", "path", "prefix_matching", "change"],
    )
    frame["ci_low"], frame["ci_high"] = frame["change"] - 0.04, frame["change"] + 0.04
    return frame.assign(n=planted.sequences, note="three query heads read this key head")


def _reach(planted: Planted, random: np.random.Generator) -> pd.DataFrame:
    periods = [16, 32, 64, 128, 256]
    rows = [
        (*head, period, max(strength * (1 - 0.05 * i * (1.6 - strength) ** 2) + random.normal(0, 0.01), 0.0))
        for head, strength in list(planted.induction.items())[:6]
        for i, period in enumerate(periods)
    ]
    frame = pd.DataFrame(rows, columns=["layer", "head", "period", "value"])
    frame["ci_low"], frame["ci_high"] = (frame["value"] - 0.03).clip(lower=0), frame["value"] + 0.03
    return frame.assign(chance=1.4 / frame["period"], n=planted.sequences)


def _tokens(planted: Planted, random: np.random.Generator, texts: Sequence[str]) -> pd.DataFrame:
    frames = []
    for sequence in range(2):
        drawn = random.choice(len(texts), planted.period, replace=len(texts) < planted.period)
        token = np.tile(drawn, 2)
        frames.append(("repeated", sequence, token, [f" {texts[i]}" for i in token]))
    frames.append(("text", 0, np.arange(len(PASSAGE)), [" " + word for word in PASSAGE]))
    return pd.concat(
        [
            pd.DataFrame({"data": data, "sequence": i, "position": np.arange(len(text)), "token": token, "text": text})
            for data, i, token, text in frames
        ],
        ignore_index=True,
    )


def _patterns(planted: Planted, tokens: pd.DataFrame, random: np.random.Generator) -> pd.DataFrame:
    rows = []
    for (layer, head), strength in list(planted.induction.items())[:4]:
        for (data, sequence), group in tokens.groupby(["data", "sequence"]):  # pyright: ignore[reportGeneralTypeIssues]
            rows += _induction_rows(group["text"].tolist(), strength, random, (layer, head, data, sequence))
    columns = ["site", "layer", "head", "data", "sequence", "query", "key", "weight"]
    return pd.DataFrame(rows, columns=columns)


def _induction_rows(texts: list[str], strength: float, random: np.random.Generator, of: tuple) -> list[tuple]:
    layer, *rest = of
    rows = []
    for query, text in enumerate(texts):
        weight = random.gamma(0.3, 0.02, query + 1)
        earlier = [i for i in range(query) if texts[i] == text]
        weight[0] += 1.0 - (strength if earlier else 0)
        for i in earlier:
            weight[i + 1] += strength / len(earlier)
        weight /= weight.sum()
        rows += [(f"blocks.{layer}.attn", layer, *rest, query, key, w) for key, w in enumerate(weight) if w >= 0.005]
    return rows


def result(planted: Planted, name: str = "tiny-lantern", texts: Sequence[str] | None = None) -> Result:
    """A result as an analysis of a made-up model would leave it."""
    model = {
        "name": name, "revision": None, "weights_sha256": "0123456789abcdef" * 4, "quantisation": "Q4_1",
        "architecture": "LlamaForCausalLM", "device": "cpu", "dtype": "float32", "n_layers": planted.n_layers,
        "n_heads": planted.n_heads, "n_kv_heads": planted.n_heads, "verify": {"max_error": 3e-5, "tolerance": 1e-4,
        "compared_with": "sdpa", "output": "logits"},
    }  # fmt: skip
    config = {
        "period": planted.period, "repeats": 2, "sequences": planted.sequences, "induction_threshold": THRESHOLD,
        "text": None, "ablated": None, "seed": 0, "budget": "report",
    }  # fmt: skip
    provenance = {
        "model": model, "config": config, "seed": 0, "device": "cpu", "dtype": "float32",
        "command": f"interp run induction-heads {name} --period {planted.period}",
        "started": "2026-01-02T03:04:05+00:00", "wall_seconds": 134.2, "peak_memory_bytes": 1_430_000_000,
        "peak_gpu_memory_bytes": None, "versions": {"interp-attention": "0.1.0", "torch": "2.13.0"},
        "platform": "Linux", "python": "3.11.7", "cpus": 2, "threads": 2,
        "left_out": [{"part": "periods beyond 256", "reason": "budget is report; --reach follows them"}],
        "notes": [],
    }  # fmt: skip
    return Result("induction-heads", tables(planted, texts), provenance)
