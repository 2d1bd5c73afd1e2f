"""How configurations treat what they do not know."""

from pydantic import ConfigDict

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
