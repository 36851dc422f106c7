"""Convert HuggingFace checkpoints to Megatron-Core and back, MTP included, and prove nothing was lost."""

__version__ = "0.1.0"
