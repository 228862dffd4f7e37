"""Update rules over torch's tensors. They import torch at the top: only a `build()` body imports them."""
