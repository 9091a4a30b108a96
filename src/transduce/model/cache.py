"""What decoding token by token keeps: keys and values of the prefix and of the memory.

Letters of the shapes: b sentences, r rows (b x width, grouped by sentence), h heads, s source
positions, t target positions.
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor

from transduce.model.config import TransformerConfig


class Cache:
    """Keys and values of all decoder layers, for rows that belong to sentences, `width` to each.

    Those of the prefix have room for `capacity` positions from the start and are moved with their
    rows; those of the memory stand once a sentence, whatever the width.
    """

    def __init__(
        self,
        cross: list[tuple[Float[Tensor, "b h s dk"], Float[Tensor, "b h s dv"]]],
        memory_mask: Bool[Tensor, "b 1 1 s"],
        config: TransformerConfig,
        *,
        width: int,
        capacity: int,
    ) -> None:
        rows = len(memory_mask) * width
        shape = (len(cross), rows, config.heads, min(capacity, config.max_length))
        self.width = width
        self.length = 0
        self.cross = cross
        self.memory_mask = memory_mask
        self.keys = cross[0][0].new_empty(*shape, config.d_k)
        self.values = cross[0][1].new_empty(*shape, config.d_v)

    def append(
        self, layer: int, key: Float[Tensor, "r h 1 dk"], value: Float[Tensor, "r h 1 dv"]
    ) -> tuple[Float[Tensor, "r h t dk"], Float[Tensor, "r h t dv"]]:
        """Store a layer's key and value at the current position; return all up to it."""
        self.keys[layer, :, :, self.length] = key[:, :, 0]
        self.values[layer, :, :, self.length] = value[:, :, 0]
        end = self.length + 1
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]

    def select(self, rows: Int[Tensor, " r2"]) -> None:
        """Make old row `rows[i]` the new row i, in the same sentence; sentences may leave."""
        end, count = self.length, len(rows)
        for state in (self.keys, self.values):
            state[:, :count, :, :end] = state[:, rows, :, :end]
        self.keys, self.values = self.keys[:, :count], self.values[:, :count]
        sentences = rows[:: self.width] // self.width
        if len(sentences) < len(self.memory_mask):
            self.memory_mask = self.memory_mask[sentences]
            self.cross = [(k[sentences], v[sentences]) for k, v in self.cross]
