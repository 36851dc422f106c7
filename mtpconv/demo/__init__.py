"""The demo: a small trained checkpoint, its round trip, and the loss that pipelines do not see."""
