"""Pack `text`: tokens of texts and dialogues, and generation of text with a model."""

from declarative_train.core.packs import Command, Pack

_HERE = "declarative_train.packs.text"

PACK = Pack(
    components={
        "source": {"text": f"{_HERE}.text_files:TextDataset"},
        "field": {"tokens": f"{_HERE}.tokens:TokensField"},
        "layer": {"latent_attention": f"{_HERE}.latent_attention:LatentAttention"},
    },
    blocks=f"{_HERE}.blocks",
    keys={"evaluation": f"{_HERE}.evaluation_keys:EvaluationKeys"},
    checks=f"{_HERE}.checks",
    commands={
        "generate": Command("let a trained text model continue a text", f"{_HERE}.commands.generate", needs_posix=True),
    },
    data_commands={
        "index": Command(
            "tokenize the texts of a recipe, so that its first run need not do it", f"{_HERE}.commands.data_index"
        ),
        "tokenizer": Command(
            "train a tokenizer on the training texts of a recipe, or on text files", f"{_HERE}.commands.data_tokenizer"
        ),
    },
    prepare_fields=f"{_HERE}.token_tables:read_tokens",
    checkpoint_files=f"{_HERE}.tokenizer:make_copies",
    use_checkpoint_files=f"{_HERE}.tokenizer:use_checkpoint_copies",
    check_recipe=f"{_HERE}.check_recipe:check_recipe",
    plan_evaluation=f"{_HERE}.plan_samples:add_samples",
    evaluation_writer=f"{_HERE}.sample_writer:make_writer",
    data_tables=f"{_HERE}.data_tables:data_tables",
)
