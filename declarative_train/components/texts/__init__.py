"""Text: tokenizers, and how tokens are laid out in samples of one length."""
