"""Low-rank adapters, and loading of folders of adapters that PEFT wrote. The parameters have the names that PEFT gives
them."""

A, B, MAGNITUDE = "lora_A.weight", "lora_B.weight", "lora_magnitude_vector"
