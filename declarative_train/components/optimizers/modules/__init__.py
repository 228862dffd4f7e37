"""Update rules on torch tensors. They import torch at the top: only a `build()` body imports them."""
