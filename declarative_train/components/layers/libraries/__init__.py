"""Models of other libraries as nodes: what they are made from, how they start, what their files hold."""

from collections.abc import Mapping, Sequence

LIBRARIES = frozenset({"timm", "transformers"})
"""The types of nodes that are such a model, each the name of its package."""


def called(component: Mapping[str, object]) -> str:
    """The model's name in its library: a class of transformers, or what timm calls it."""
    config = component.get("config")
    known = config.get("architectures") if isinstance(config, Mapping) else None
    said = component.get("architecture") or component.get("name")
    return str(said or (known[0] if isinstance(known, Sequence) and known else "AutoModel"))
