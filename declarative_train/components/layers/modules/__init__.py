"""The `nn.Module` classes that torch does not have. They import torch: only a `build()` body imports them."""
