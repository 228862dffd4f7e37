"""Names of the export formats."""

PUBLISHED = {"huggingface": "transformers", "timm": "timm", "torchvision": "torchvision"}  # format -> its library
NAMES = (  # those that are not in PUBLISHED are in `formats.FORMATS`
    *("huggingface", "onnx", "peft", "safetensors", "state-dict", "timm", "torch-export", "torchvision"),
)
DTYPES = ("float32", "float64", "float16", "bfloat16")
