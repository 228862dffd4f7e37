"""`nn.Module` classes that torch does not have. They import torch, so only a `build()` body imports them."""
