"""Models of other libraries as nodes: what they are made from, how they start, what their files hold."""

LIBRARIES = frozenset({"timm", "transformers"})
"""The types of nodes that are such a model, each the name of its package."""
