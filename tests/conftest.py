"""Before anything imports megatron: the TransformerEngine stand-in, or no TE layer is built."""

from tests.oracle import te

te.install()
