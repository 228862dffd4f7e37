"""Models of other libraries (transformers, timm) as nodes of a recipe: their construction, initial values and files."""

from collections.abc import Mapping, Sequence


def model_name(component: Mapping[str, object]) -> str:
    """Return the model's name in its library: a class name of transformers, or a model name of timm."""
    config = component.get("config")
    known = config.get("architectures") if isinstance(config, Mapping) else None
    said = component.get("architecture") or component.get("name")
    return str(said or (known[0] if isinstance(known, Sequence) and known else "AutoModel"))
