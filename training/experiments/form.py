"""The forms of an experiment: how much of it is done."""

from typing import Literal, get_args

Form = Literal["full", "medium", "quick"]
"""`full` is the paper's, `medium` hours of a CPU (see each MEDIUM_FORM), `quick` minutes of one."""

FORMS: tuple[Form, ...] = get_args(Form)


def folder_name(experiment: str, form: Form) -> str:
    """Of an experiment's results, by default."""
    return experiment if form == "full" else f"{experiment}-{form}"
