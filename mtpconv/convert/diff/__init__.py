"""The exact diff of two checkpoints, HF or Megatron in any mix."""
