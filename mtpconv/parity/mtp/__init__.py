"""How each family's release stores and runs its MTP layers, for the HuggingFace side."""
