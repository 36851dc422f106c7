"""One small file a family: its rules and the Megatron-LM arguments its config translates to."""
