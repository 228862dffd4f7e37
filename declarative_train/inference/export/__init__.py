"""A trained model -> a folder that other tools load: the tensors or the program, what goes in and what comes out."""

PUBLISHED = "huggingface"
NAMES = (PUBLISHED, "onnx", "peft", "safetensors", "state-dict", "torch-export")  # the others are in `formats.FORMATS`
DTYPES = ("float32", "float64", "float16", "bfloat16")
