"""What the MTP loaders of serving engines ask of a checkpoint."""
