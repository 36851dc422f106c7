"""Before anything imports megatron: the TransformerEngine stand-in, or no TE layer is built."""

from mtpconv.parity import te

te.install()
