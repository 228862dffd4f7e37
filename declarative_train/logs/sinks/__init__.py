"""The places that events go to, by name. A sink is imported when a run asks for it."""

SINKS: dict[str, str] = {
    "console": "declarative_train.logs.sinks.console.ConsoleSink",
    "jsonl": "declarative_train.logs.sinks.jsonl.JsonlSink",
    "tensorboard": "declarative_train.logs.sinks.tensorboard.TensorBoardSink",
}
