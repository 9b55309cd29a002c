"""Models whose heads are known: every head's pattern is written by a rule that looks at the tokens.

The text and the treebank are made for it: every word is a token, every sentence holds one word that occurs nowhere
else, some hold brackets, and trees are drawn at random, so that no fixed offset finds anything.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import PreTrainedTokenizerFast

import interp
from interp import HookedModel
from interp.attention.edits import Edit
from interp.data import Sentence, read_treebank
from tests.families import make

COMMON = [f"w{i}" for i in range(40)]
RARE = [f"r{i}" for i in range(600)]
NAMES = ["ann", "bob", "cyd"]
SIGNS = [".", "(", ")", "7"]
SPECIAL = ["[PAD]", "[BOS]", "[CLS]", "[SEP]", "[UNK]"]
WORDS = [*SPECIAL, *SIGNS, *COMMON, *NAMES, *RARE]
ID = {word: i for i, word in enumerate(WORDS)}

Truth = dict[tuple[int, int], str]

CAUSAL: Truth = {
    (0, 0): "previous", (0, 1): "offset -3", (0, 2): "current", (0, 3): "sink", (0, 4): "duplicate",
    (0, 5): "induction", (1, 0): "rare_word", (1, 1): "bracket", (1, 2): "broad", (1, 3): "syntax",
    (1, 4): "coreference",
}  # fmt: skip
ENCODER: Truth = {
    (0, 0): "previous", (0, 1): "offset +1", (0, 2): "current", (0, 3): "sink", (1, 0): "separator",
    (1, 1): "duplicate", (1, 2): "rare_word", (1, 3): "bracket", (2, 0): "broad", (2, 1): "syntax", (2, 2): "offset -3",
}  # fmt: skip
#: What each rule has to be called: (kind, detail).
EXPECTED: dict[str, set[tuple[str, str]]] = {
    "previous": {("previous_token", ""), ("positional", "-1")},
    "current": {("current_token", ""), ("positional", "0")},
    "offset -3": {("positional", "-3")},
    "offset +1": {("positional", "+1")},
    "sink": {("sink", "")},
    "separator": {("separator", "")},
    "duplicate": {("duplicate_token", "")},
    "induction": {("induction", "")},
    "rare_word": {("rare_word", "")},
    "bracket": {("bracket_matching", "")},
    "broad": {("broad", "")},
    "syntax": {("syntactic", "det dependent→head")},
    "coreference": {("coreference", "")},
}


def tokenizer(wrapped: bool) -> Any:
    """Every word is a token; ``wrapped`` puts [CLS] and [SEP] around a text, else nothing."""
    made = Tokenizer(WordLevel(ID, unk_token="[UNK]"))
    made.pre_tokenizer = WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    if wrapped:
        ids = [(name, ID[name]) for name in ("[CLS]", "[SEP]")]
        made.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ids)  # pyright: ignore
    own = {"cls_token": "[CLS]", "sep_token": "[SEP]"} if wrapped else {"bos_token": "[BOS]"}
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]", **own)


def write_text(path: Path, documents: int = 24, sentences: int = 14, seed: int = 0) -> Path:
    """Documents of sentences of common words and one rare word each; every third sentence has brackets."""
    rng = np.random.default_rng(seed)
    rare = iter(rng.permutation(RARE).tolist())
    texts = []
    for _ in range(documents):
        made = []
        for number in range(sentences):
            words = rng.choice(COMMON, rng.integers(5, 9)).tolist()
            words.insert(int(rng.integers(1, 3)), next(rare))
            if number % 3 == 0:
                words += ["(", *rng.choice(COMMON, 3).tolist(), "7", ")", str(rng.choice(COMMON))]
            made.append(" ".join([*words, "."]))
        texts.append(" ".join(made))
    path.write_text("\n\n\n".join(texts), encoding="utf-8")
    return path


def write_treebank(path: Path, documents: int = 40, sentences: int = 6, seed: int = 0) -> Path:
    """Sentences of different words with random trees; three people are mentioned again and again, by changing words."""
    rng = np.random.default_rng(seed)
    lines = []
    for document in range(documents):
        lines.append(f"# newdoc id = {document}")
        for sentence in range(sentences):
            words = rng.permutation(COMMON)[:9].tolist()
            person = NAMES[int(rng.integers(3))]
            order = rng.permutation(9)
            heads = {int(word): int(order[rng.integers(0, i)]) for i, word in enumerate(order) if i}
            lines += [f"# sent_id = {document}-{sentence}"]
            for i, word in enumerate(words):
                misc = f"Entity=({person}-person)" if i == 3 else "_"
                relation = "root" if i not in heads else str(rng.choice(["det", "amod", "obj"]))
                row = [i + 1, word, "_", "_", "_", "_", heads[i] + 1 if i in heads else 0, relation, "_", misc]
                lines.append("\t".join(map(str, row)))
            lines.append("")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@dataclass(frozen=True, eq=False)
class World:
    """What rules may know of the treebank: for each set of words the head of each det by its word, and entities.

    Attributes:
        heads: the words of a sentence → {dependent: head} of its det relations, as token ids.
        antecedents: the tokens of a stretch → {position: position of an earlier mention of the same entity}.
    """

    heads: Mapping[frozenset[int], Mapping[int, int]] = field(default_factory=dict)
    antecedents: Mapping[tuple[int, ...], Mapping[int, int]] = field(default_factory=dict)


def target(rule: str, tokens: Sequence[int], query: int, causal: bool, world: World) -> int | None:
    """The key that a rule attends to; None where it has none."""
    n, own, special = len(tokens), tokens[query], {ID[word] for word in SPECIAL}
    inside = [key for key in range(n) if (key <= query or not causal) and tokens[key] not in special]
    if rule.startswith("offset"):
        key = query + int(rule.split()[1])
        return key if 0 <= key < n else None
    if rule in ("previous", "current", "sink"):
        return {"previous": query - 1 if query else None, "current": query, "sink": 0}[rule]
    if rule == "separator":
        return next((key for key in range(n - 1, -1, -1) if tokens[key] == ID["[SEP]"]), None)
    if rule == "duplicate":
        return next((key for key in reversed(inside) if tokens[key] == own and key != query), None)
    if rule == "induction":
        return next((key + 1 for key in reversed(inside) if tokens[key] == own and key < query), None)
    if rule == "rare_word":
        stop = ID["."]
        begin = next((key + 1 for key in range(query - 1, -1, -1) if tokens[key] == stop), 0)
        end = next((key for key in range(query, n) if tokens[key] == stop), n)
        return next((k for k in inside if begin <= k < end and WORDS[tokens[k]] in _RARE and k != query), None)
    if rule == "bracket":
        if own == ID[")"]:
            return next((key for key in range(query - 1, -1, -1) if tokens[key] == ID["("]), None)
        return next((k for k in inside if own == ID["("] and k > query and tokens[k] == ID[")"]), None)
    if rule == "syntax":
        head = world.heads.get(frozenset(tokens) - special, {}).get(own)
        return next((key for key in inside if tokens[key] == head), None)
    assert rule == "coreference"
    return world.antecedents.get(tuple(tokens), {}).get(query)


_RARE = frozenset(RARE)


def row(rule: str, tokens: Sequence[int], query: int, causal: bool, world: World, head: int) -> list[float]:
    """A row of a pattern; where a rule finds nothing, one key that only this head and row have in common."""
    n = len(tokens)
    readable = query + 1 if causal else n
    if rule == "broad":
        return [1 / readable if key < readable else 0.0 for key in range(n)]
    key = target(rule, tokens, query, causal, world) if rule else None
    if key is None:
        key = int(np.random.default_rng([head, query, tokens[query]]).integers(readable))
    return [float(at == key) for at in range(n)]


def world(treebank: Path) -> World:
    """What the treebank says, for decoders."""
    heads: dict[frozenset[int], dict[int, int]] = {}
    documents: dict[str, list[Sentence]] = {}
    for sentence in read_treebank(treebank):
        ids = [ID[word] for word in sentence.words]
        pairs = zip(ids, sentence.heads, sentence.relations, strict=True)
        heads[frozenset(ids)] = {own: ids[head] for own, head, relation in pairs if relation == "det"}
        documents.setdefault(sentence.document, []).append(sentence)
    antecedents = {}
    for sentences in documents.values():
        tokens, last, found = [ID["[BOS]"]], {}, {}
        for sentence in sentences:
            for mention in sentence.mentions:
                position = len(tokens) + mention.head
                if mention.entity in last:
                    found[position] = last[mention.entity]
                last[mention.entity] = position
            tokens += [ID[word] for word in sentence.words]
        antecedents[tuple(tokens)] = found
    return World(heads, antecedents)


@lru_cache(maxsize=20_000)
def pattern(rule: str, tokens: tuple[int, ...], causal: bool, known: World, head: int) -> Tensor:
    """All rows of a head on one sequence."""
    return torch.tensor([row(rule, tokens, query, causal, known, head) for query in range(len(tokens))])


@dataclass(frozen=True, eq=False)
class Rules(Edit):
    """Every head's rows as its rule has them."""

    truth: Truth = field(default_factory=dict)
    causal: bool = True
    world: World = field(default_factory=World)
    seen: list[Tensor] = field(default_factory=list)
    layer: int = -1
    heads: None = None
    stage: ClassVar[Any] = "pattern"

    def parameters(self) -> dict[str, Tensor]:
        return {}

    def at(self, site: Any) -> Edit:
        return Rules(truth=self.truth, causal=self.causal, world=self.world, seen=self.seen, layer=site.layer)

    def apply(self, x: Tensor, block: Any) -> Tensor:
        sequences = [tuple(token for token in row if token != ID["[PAD]"]) for row in self.seen[0].tolist()]
        out = torch.zeros_like(x)
        for b, tokens in enumerate(sequences):
            n, stop = len(tokens), min(block.stop, len(tokens))
            for head in range(x.shape[1]):
                rule = self.truth.get((self.layer, head), "")
                whole = pattern(rule, tokens, self.causal, self.world, 10 * self.layer + head)
                high = min(block.high, n)
                out[b, head, : stop - block.start, : high - block.low] = whole[block.start : stop, block.low : high]
        return out


@contextmanager
def planted(truth: Truth, causal: bool, known: World | None = None) -> Iterator[HookedModel]:
    """A tiny Llama or BERT whose heads follow rules."""
    sizes: dict[str, Any] = {"vocab_size": len(WORDS), "bos_token_id": ID["[BOS]"], "eos_token_id": None}
    module = make("llama", **sizes) if causal else make("bert", vocab_size=len(WORDS), num_hidden_layers=3)
    model = interp.load(module, tokenizer=tokenizer(wrapped=not causal), verify=False)
    seen: list[Tensor] = []
    embedding = module.get_input_embeddings()
    handle = embedding.register_forward_pre_hook(lambda _, given: seen.__setitem__(slice(None), given[:1]))
    try:
        with model.edit(Rules(truth=truth, causal=causal, world=known or World(), seen=seen)):
            yield model
    finally:
        handle.remove()
