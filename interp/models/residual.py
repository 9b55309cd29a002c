"""What lies on the residual stream around the attention modules: embedding, norms, unembedding.

Names do not tell it (``post_attention_layernorm`` comes after attention in Gemma, before the feed-forward layer in
Llama; ``self_attn_layer_norm`` comes before attention in OPT, after it in BART), so it is read off one forward pass
over six tokens: whose output is attention's input, whose input is attention's output.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from interp.errors import UserError
from interp.models.norms import Norm, read_norm
from interp.models.projections import AttentionModule
from interp.models.stacks import layer_path
from interp.models.trace import Trace, example_inputs, trace


@dataclass(frozen=True, eq=False)
class AttentionNorms:
    """The norms around one attention module.

    Attributes:
        order: "pre": attention reads a norm of the stream, or the stream itself, and what it writes is added to the
            stream. "post": the stream itself passes through norms within the layer.
        before: the norm that queries (and, in self-attention, keys and values) are made from; None: the stream itself.
        after: the norm of attention's output before it is added ("pre"), or of its sum with the stream ("post").
    """

    order: Literal["pre", "post"]
    before: Norm | None
    after: Norm | None


@dataclass(frozen=True, eq=False)
class ResidualStream:
    """Where the residual stream starts and ends, and the norms on it.

    A token's embedding is ``embedding_norm(embedding_scale · W_E[token])``, positions aside; its logits are
    ``logit_scale · (final_norm(stream) @ W_U)`` and a bias, then capped.

    Attributes:
        norms: by path of the attention module; of those that ran.
        stack: name of the stack that ends in the logits (as in `AttentionModule.stack`).
        W_E: the embedding of that stack, a view.
        final_norm: between that stack's last layer and the unembedding.
        W_U: the unembedding, a view.
        b_U: its bias.
        tied: W_U is the transpose of W_E.
        softcap: logits become ``softcap · tanh(logits / softcap)``.
        no_direct_path: why what a layer adds to the stream does not reach the logits by one final norm and a linear
            map, or why a token's embedding is not what the first layer reads; "" where both hold.
    """

    norms: Mapping[str, AttentionNorms]
    stack: str = ""
    W_E: Float[Tensor, "token d_model"] | None = None
    embedding_scale: float = 1.0
    embedding_norm: Norm | None = None
    final_norm: Norm | None = None
    W_U: Float[Tensor, "d_model token"] | None = None
    b_U: Float[Tensor, " token"] | None = None  # noqa: N815
    logit_scale: float = 1.0
    softcap: float | None = None
    no_direct_path: str = ""

    @property
    def tied(self) -> bool:
        """W_U and W_E are one parameter."""
        return self.W_E is not None and self.W_U is not None and self.W_E.data_ptr() == self.W_U.data_ptr()


def residual_stream(
    model: Any, attentions: Sequence[AttentionModule], example: Mapping[str, Any] | None = None
) -> ResidualStream:
    """Find the embedding, the norms and the unembedding of a transformers model.

    Args:
        model: of transformers. One forward pass over six tokens is run, in eval mode and without gradients.
        attentions: its attention modules (`projections.attention_modules`).
        example: keyword arguments for that pass, with two different inputs of one length; made up for models that read
            tokens or images.

    Raises:
        UserError: no example can be made up, a norm is of an unknown kind, or the model does not say what its embedding
            and unembedding are.
    """
    if not hasattr(model, "get_output_embeddings"):
        raise UserError(
            f"the embedding and the unembedding of {type(model).__name__} are not known: it has no "
            "get_input_embeddings() and get_output_embeddings(), as models of transformers have"
        )
    reader = _Reader(model, attentions, example)
    norms = {a.path: reader.around(a) for a in attentions if a.output_path in reader.seen.written}
    if reader.unembedding is None:
        return ResidualStream(norms, no_direct_path="the model has no unembedding")
    end = reader.end()
    if isinstance(end, str):
        return ResidualStream(norms, no_direct_path=end)
    start = reader.start(end["stack"])
    rest: dict[str, Any] = {"no_direct_path": start} if isinstance(start, str) else start
    return ResidualStream(norms, **end, **rest)


class _Reader:
    """One traced forward pass, and what can be told from it."""

    def __init__(self, model: Any, attentions: Sequence[AttentionModule], example: Mapping[str, Any] | None) -> None:
        self.model = model
        self.unembedding = model.get_output_embeddings()
        self.embedding = (model.get_decoder() if model.config.is_encoder_decoder else model).get_input_embeddings()
        self.path_of = {id(module): path for path, module in model.named_modules()}
        self.norm_paths = [path for path, module in model.named_modules() if _may_be_norm(module)]
        self.layers = {a.stack: _layers(model, a) for a in attentions}
        paths = [*self.norm_paths, *(path for stack in self.layers.values() for path in stack)]
        paths += [self.path_of[id(m)] for m in (self.embedding, self.unembedding) if m is not None]
        paths += [path for a in attentions for path in (self.path_of[id(_reading(a))], a.output_path)]
        self.inputs = example or example_inputs(model)
        # where nothing is unembedded, a task's own head has nothing to tell, and may want more than these inputs
        run = model if self.unembedding is not None else model.base_model
        self.seen, self.output = trace(model, paths, run, self.inputs)

    def around(self, attention: AttentionModule) -> AttentionNorms:
        """The norms around an attention module, and whether its layer norms the stream itself."""
        seen, layer = self.seen, layer_path(attention.path)
        inside = [path for path in self.norm_paths if path.startswith(f"{layer}.")]
        x, y = seen.read.get(self.path_of[id(_reading(attention))]), seen.written.get(attention.output_path)
        before, after = _first(seen.written, x, inside), _first(seen.read, y, inside)
        added = x + y if x is not None and y is not None and x.shape == y.shape else None
        stream = seen.read.get(layer)
        of_sum = next((path for path in inside if seen.close(seen.read.get(path), added)), None)
        # either the layer ends in a norm, or attention's output is added to a normed stream, not to the stream
        normed_end = _first(seen.written, seen.written.get(layer), inside) is not None
        normed_sum = before is not None and of_sum is not None
        if of_sum is not None and stream is not None and y is not None and stream.shape == y.shape:
            normed_sum &= not seen.close(seen.read[of_sum], stream + y)
        if normed_end or normed_sum:
            return AttentionNorms("post", None, self.norm(of_sum))
        return AttentionNorms("pre", self.norm(before), self.norm(after))

    def end(self) -> dict[str, Any] | str:
        """How a stack's last layer reaches the logits; or why it does not by a norm and a linear map."""
        seen, head = self.seen, self.path_of[id(self.unembedding)]
        stack, norm, scale = self._last_norm(seen.read.get(head))
        if scale is None:
            return "between the last layer and the unembedding lies more than a norm"
        logits = getattr(self.output, "logits", None)
        flat = None if logits is None else logits.float().cpu().reshape(-1, logits.shape[-1])
        softcap = getattr(self.model.config.get_text_config(), "final_logit_softcapping", None)
        factor = 1.0 if softcap else seen.factor(flat, seen.written.get(head))
        if factor is None:
            return "the logits are not what the unembedding computes"
        bias = getattr(self.unembedding, "bias", None)
        return {
            "stack": stack,
            "final_norm": self.norm(norm),
            "W_U": self.unembedding.weight.detach().T,
            "b_U": bias.detach() if isinstance(bias, Tensor) else None,
            "logit_scale": scale * factor,
            "softcap": softcap,
        }

    def start(self, stack: str) -> dict[str, Any] | str:
        """How a token's embedding becomes what the first layer reads; or why it is not the sum with a position."""
        seen = self.seen
        embedded = seen.written.get(self.path_of[id(self.embedding)])
        first = seen.read.get(self.layers[stack][0]) if self.layers[stack] else None
        tokens = self.inputs.get("decoder_input_ids", self.inputs.get("input_ids"))
        if embedded is None or first is None or tokens is None:
            return "the layers do not start from an embedding of tokens"
        norm = _first(seen.written, first, self.norm_paths)
        read = first if norm is None else seen.read[norm]
        W_E = self.embedding.weight.detach()
        scale = seen.factor(embedded, W_E[tokens.to(W_E.device)].float().cpu().reshape(-1, W_E.shape[1]))
        # of two sequences, the same positions: what is added for position is gone from the difference
        passed = seen.factor(_difference(read), _difference(embedded), float(read.norm()))
        if scale is None or passed is None:
            return "an embedding reaches the first layer by more than a sum with its position"
        return {"W_E": W_E, "embedding_scale": scale * passed, "embedding_norm": self.norm(norm)}

    def norm(self, path: str | None) -> Norm | None:
        """The norm at a path."""
        if path is None:
            return None
        return read_norm(self.model.get_submodule(path), path, self.seen.written[path].shape[-1])

    def _last_norm(self, read: Tensor | None) -> tuple[str, str | None, float | None]:
        """The stack, the norm (None: none) and the factor by which a last layer's output becomes what was read."""
        seen = self.seen
        for stack, layers in self.layers.items():
            last = seen.written.get(layers[-1]) if layers else None
            for path in self.norm_paths:
                scale = seen.factor(read, seen.written.get(path))
                if scale is not None and seen.same(seen.read.get(path), last):
                    return stack, path, scale
            scale = seen.factor(read, last)
            if scale is not None:
                return stack, None, scale
        return "", None, None


def _may_be_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower() and next(module.children(), None) is None


def _layers(model: nn.Module, attention: AttentionModule) -> list[str]:
    """The paths of all layers of an attention module's stack, those without attention too."""
    stack = layer_path(attention.path).rpartition(".")[0]
    if not stack:
        return []
    return [f"{stack}.{name}" for name, _ in model.get_submodule(stack).named_children() if name.isdigit()]


def _reading(attention: AttentionModule) -> nn.Module:
    """The projection that reads the stream."""
    return attention.projections.get("query") or attention.projections["fused"]


def _first(tensors: Mapping[str, Tensor], value: Tensor | None, paths: Sequence[str]) -> str | None:
    """The first path under which exactly this tensor was seen."""
    return next((path for path in paths if Trace.same(tensors.get(path), value)), None)


def _difference(rows: Float[Tensor, "row width"]) -> Float[Tensor, "row width"]:
    first, second = rows.chunk(2)
    return first - second
