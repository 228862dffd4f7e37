"""Checks of the pack `text`: {code: `file.function`}. The function's docstring is the manual page of the code."""

RULES: dict[str, str] = {
    "D026": "trained.answers_cut_off",
    "D027": "trained.end_not_trained",
    "G029": "unequal_pair",
    "R109": "samples.cannot_write",
    "R139": "padding.padding_is_read",
    "R140": "trained.padding_is_target",
    "R141": "trained.padding_is_counted",
    "R142": "trained.end_is_ignored",
    "R143": "trained.mask_of_other_tokens",
    "R144": "trained.target_is_not_next",
    "R145": "trained.texts_not_separated",
    "R146": "trained.packed_answers_in_kto",
    "R147": "trained.mostly_padding",
}
