"""Convert HuggingFace checkpoints to Megatron-Core and back, MTP included, provably whole."""

__version__ = "0.1.0"
