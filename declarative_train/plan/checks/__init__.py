"""The rules of this room: code -> module. A rule is one file, whose docstring is its manual page."""

RULES: dict[str, str] = {
    "O105": "cannot_balance",
    "P101": "cut_not_a_node",
    "P102": "cut_out_of_order",
    "P103": "nothing_in_stage",
    "P104": "too_few_nodes",
    "P105": "tie_across_stages",
    "P106": "reuse_across_stages",
    "P107": "reuse_with_split_backward",
    "R101": "batch_larger_than_data",
    "R102": "no_tokens",
    "R103": "past_the_end",
    "R104": "group_does_not_divide",
    "R105": "group_of_microbatch",
    "R106": "padded_group",
    "R107": "group_across_replicas",
    "U101": "init_does_not_fit",
    "U102": "tie_does_not_fit",
    "U103": "optimizer_does_not_fit",
    "U104": "nothing_trains",
    "U105": "weights_not_found",
}
