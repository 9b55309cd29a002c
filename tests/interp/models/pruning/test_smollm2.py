"""Pruning a real decoder with grouped keys."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import interp
from interp.models.pruning import keep_uniform, possible_counts, prune, save_plain, save_pruned
from tests.interp.models.pruning.gated import assert_same, gated, gates, kept_at_random, output

ROUNDING = 5e-3
"""How far SmolLM2's logits in float32 are from those in float64."""


def text(model: Any) -> torch.Tensor:
    words = (
        "The lighthouse keeper climbed the stairs every evening, lit the lamp, and wrote down which ships had passed."
    )
    return torch.tensor([model.tokenizer(words)["input_ids"][:20]] * 2)


def test_half_of_the_heads(smollm2: Any, tmp_path: Path) -> None:
    keep = {**kept_at_random(smollm2, seed=1), "blocks.0.attn": (), "blocks.7.attn": ()}
    pruned = prune(smollm2, keep)
    tokens = text(smollm2)
    wanted = gated(smollm2, keep, tokens=tokens)
    assert_same(output(pruned, tokens=tokens), wanted, ROUNDING)
    assert torch.equal(output(pruned, tokens=tokens).argmax(-1), wanted.argmax(-1))
    batch, valid = tokens.clone(), torch.ones_like(tokens)
    valid[1, :6] = 0
    options = {"attention_mask": valid, "max_new_tokens": 8, "do_sample": False}
    with smollm2.edit(gates(smollm2, keep)):
        written = smollm2.generate(batch, **options)
    assert torch.equal(pruned.generate(batch, **options), written)
    save_pruned(pruned, tmp_path / "pruned")
    again: Any = interp.load(str(tmp_path / "pruned"))
    assert_same(output(again, tokens=tokens), output(pruned, tokens=tokens), 0)
    assert again.tokenizer("a word")["input_ids"] == smollm2.tokenizer("a word")["input_ids"]


def test_four_heads_in_each_layer_for_transformers_alone(smollm2: Any, tmp_path: Path) -> None:
    assert [tuple(counts) for counts in possible_counts(smollm2)] == [
        (1, 1), (2, 1), (2, 2), (3, 1), (3, 3), (4, 2), (6, 2), (6, 3), (9, 3),
    ]  # fmt: skip
    worth = {(site.name, head): float((head * 7 + site.layer) % 9) for site in smollm2.sites for head in range(9)}
    pruned = prune(smollm2, keep_uniform(smollm2, worth, 4))
    wanted = output(pruned, tokens=text(smollm2))
    save_plain(pruned, tmp_path / "plain")
    code = (
        "import json, sys, torch, transformers\n"
        "model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])\n"
        "tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])\n"
        "tokens = torch.tensor(json.loads(sys.argv[2]))\n"
        "with torch.no_grad():\n"
        "    torch.save(model(tokens).logits, sys.argv[3])\n"
        "print(len(tokenizer('a word')['input_ids']))\n"
    )
    words = [str(tmp_path / "plain"), json.dumps(text(smollm2).tolist()), str(tmp_path / "logits.pt")]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert_same(torch.load(tmp_path / "logits.pt"), wanted, ROUNDING)
