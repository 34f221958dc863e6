"""A prompt that a language model has read, and what is asked about it or about its beginning.

Keys and values of the prompt are kept. Answers are a tree of tokens: what several begin with is run once, and each
token attends to the prompt and to the tokens that lead to it, in one pass with a mask. So comparing 11 answers for each
of 14 frames costs some hundred tokens behind the prompt, not 154 prompts. Nothing is approximated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from reward_models.answers import Options, tokenised
from robo_rl.errors import RewardError

if TYPE_CHECKING:
    from reward_models.prompting import Asker, Content

ROWS = 64  # answers that are looked at together; bounds memory


class Reading:
    """A prompt whose keys and values are kept. Questions to it, or to a part of it, look at them and add nothing."""

    def __init__(self, asker: Asker, content: Content) -> None:
        self.asker, self.content = asker, list(content)
        self.inputs = asker.inputs([content])
        self.cache = DynamicCache()  # without a configuration: it keeps all, also where attention slides
        asker.model(**self.inputs, past_key_values=self.cache, use_cache=True, logits_to_keep=1)

    @torch.inference_mode()
    def log_probs(
        self, options: Sequence[str], starts: Sequence[str] = ("",), *, cut: int | None = None, tail: Sequence[str] = ()
    ) -> np.ndarray:
        """Log-probability of each option after each beginning of an answer: float64 (starts, options).

        With `cut`, the prompt is its first `cut` parts and then the texts `tail`. Beginnings do not know of each other.
        """
        inputs = self.inputs
        if cut is not None:
            content = [*self.content[:cut], *tail]
            inputs = self.asker.inputs([content])
        kept = self._kept(inputs["input_ids"][0])
        if kept is None:  # a part of the prompt shows its pictures with other tokens
            return Reading(self.asker, content).log_probs(options, starts)
        made = [tokenised(self.asker.tokenizer, start, options) for start in starts]
        rows = [row for one in made for row in _rows(one)]
        found = [self._run(inputs, kept, rows[first : first + ROWS]) for first in range(0, len(rows), ROWS)]
        return np.concatenate(found).reshape(len(starts), len(options))

    def _kept(self, ids: Tensor) -> int | None:
        """How many tokens of the kept ones begin this prompt; None when what is left holds pictures."""
        own = self.inputs["input_ids"][0]
        size = min(len(own), len(ids))
        same = (own[:size] == ids[:size]).long().cumprod(0)
        kept = min(int(same.sum()), len(ids) - 1)  # one token at least is run: its logits are needed
        return None if bool((ids[kept:] == self.asker.image_token).any()) else kept

    def _run(self, inputs: dict[str, Tensor], kept: int, rows: Sequence[tuple[list[int], int]]) -> np.ndarray:
        """Sums of log-probabilities of the scored tokens of each row: float64 (rows,)."""
        device = self.asker.device
        tree = _Tree(inputs["input_ids"][0, kept:].tolist(), rows)
        depth = torch.from_numpy(tree.depth()).to(device)
        out = self.asker.model(
            input_ids=torch.tensor([tree.tokens], device=device),
            attention_mask=self._mask(torch.from_numpy(tree.ancestors()).to(device), depth, kept),
            position_ids=self._places(inputs, kept, depth),
            past_key_values=_looked_at(self.cache, kept),
            use_cache=True,
            logits_to_keep=torch.tensor(tree.asked, device=device),
        )
        log_p = F.log_softmax(out.logits[0].float(), -1)
        parents, tokens, of_row = (torch.tensor(part, device=device) for part in tree.scored())
        sums = torch.zeros(len(rows), dtype=torch.float64, device=device)
        return sums.index_add(0, of_row, log_p[parents, tokens].double()).cpu().numpy()

    def _places(self, inputs: dict[str, Tensor], kept: int, depth: Tensor) -> Tensor:
        """Positions of the tree's tokens, as the model counts them."""
        positions = self.asker.positions(inputs)
        if positions is None:
            # PaliGemma counts from 1
            first = kept + int(self.asker.model.config.model_type == "paligemma")
            return (first + depth)[None]
        own = positions[:, 0, kept:]  # (3, rest of the prompt): text, so all three count on alike
        return (own[:, :1] + depth)[:, None]

    def _mask(self, ancestors: Tensor, depth: Tensor, kept: int) -> Any:
        """What each token attends to: the kept prompt, and what leads to it. (1, 1, N, kept + N), one a layer type."""
        rule = torch.cat([ancestors.new_ones(len(ancestors), kept), ancestors], 1)
        text = self.asker.model.config.get_text_config()
        kinds = getattr(text, "layer_types", None) or ()
        if "sliding_attention" not in kinds:
            return self._as_bias(rule)
        place = torch.cat([torch.arange(kept, device=depth.device), kept + depth])
        near = place[None] > (kept + depth)[:, None] - text.sliding_window
        return {"full_attention": self._as_bias(rule), "sliding_attention": self._as_bias(rule & near)}

    def _as_bias(self, rule: Tensor) -> Tensor:
        if self.asker.attention == "sdpa":
            return rule[None, None]
        dtype = next(self.asker.model.parameters()).dtype
        blocked = torch.zeros_like(rule, dtype=dtype).masked_fill(~rule, torch.finfo(dtype).min)
        return blocked[None, None]


def _rows(made: Options) -> list[tuple[list[int], int]]:
    """Each option's tokens, and how many of them, from the end, its probability is made of."""
    if made.part_at_once:
        return [([*made.shared, branch[0]], 1) for branch in made.branches]
    return [([*made.shared, *branch], len(branch)) for branch in made.branches]


class _Tree:
    """Rows of tokens that follow the rest of a prompt, as a tree. The last token of a row is asked for, never run."""

    def __init__(self, rest: Sequence[int], rows: Sequence[tuple[list[int], int]]) -> None:
        self.tokens, self.parents = list(rest), list(range(-1, len(rest) - 1))
        self.rows: list[list[tuple[int, int]]] = []  # of each row, its scored tokens with the node before each
        known: dict[tuple[int, int], int] = {}
        for tokens, scored in rows:
            node, path = len(rest) - 1, []
            for number, token in enumerate(tokens):
                path.append((node, token))
                if number == len(tokens) - 1:
                    break
                if (node, token) not in known:
                    known[node, token] = len(self.tokens)
                    self.tokens.append(token)
                    self.parents.append(node)
                node = known[node, token]
            self.rows.append(path[len(path) - scored :])
        self.asked = sorted({node for row in self.rows for node, _ in row})

    def depth(self) -> np.ndarray:
        """Tokens before each, int64 (N,)."""
        depth = np.zeros(len(self.tokens), np.int64)
        for node, parent in enumerate(self.parents[1:], start=1):
            depth[node] = depth[parent] + 1
        return depth

    def ancestors(self) -> np.ndarray:
        """bool (N, N): whether a column's token leads to a row's, or is it."""
        lead = np.eye(len(self.tokens), dtype=bool)
        for node, parent in enumerate(self.parents[1:], start=1):
            lead[node] |= lead[parent]
        return lead

    def scored(self) -> tuple[list[int], list[int], list[int]]:
        """Of all scored tokens: place in `asked` of the node before, token, number of the row."""
        place = {node: n for n, node in enumerate(self.asked)}
        found = [(place[node], token, n) for n, row in enumerate(self.rows) for node, token in row]
        parents, tokens, rows = zip(*found, strict=True)
        return list(parents), list(tokens), list(rows)


class _Looked(DynamicLayer):
    """Keys and values that a pass looks at together with its own; nothing is added to them."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.lazy_initialization(keys, values)
        self.keys, self.values = keys, values

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return torch.cat([self.keys, key_states], -2), torch.cat([self.values, value_states], -2)


def _looked_at(cache: DynamicCache, kept: int) -> DynamicCache:
    """The first `kept` tokens of a cache."""
    made = DynamicCache()
    for layer in cache.layers:
        if layer.keys is None or layer.values is None:
            raise RewardError("a layer keeps no keys and values; this architecture is not supported")
        made.layers.append(_Looked(layer.keys[:, :, :kept], layer.values[:, :, :kept]))
    return made
