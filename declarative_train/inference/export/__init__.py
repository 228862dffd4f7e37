"""A trained model -> a folder that other tools load: the tensors or the program, what goes in and what comes out."""

PUBLISHED = {"huggingface": "transformers", "timm": "timm", "torchvision": "torchvision"}  # whose models they are
NAMES = (  # the others are in `formats.FORMATS`
    *("huggingface", "onnx", "peft", "safetensors", "state-dict", "timm", "torch-export", "torchvision"),
)
DTYPES = ("float32", "float64", "float16", "bfloat16")
