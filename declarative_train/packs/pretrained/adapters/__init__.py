"""Low-rank adapters, and folders of adapters that PEFT wrote. Parameters have PEFT's names."""

A, B, MAGNITUDE = "lora_A.weight", "lora_B.weight", "lora_magnitude_vector"
