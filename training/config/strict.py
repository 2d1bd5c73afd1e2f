"""How configurations treat what they do not know, and how large their numbers can be."""

from typing import Annotated

from pydantic import ConfigDict, Field

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)

MAX_COUNT = 2**31 - 1
"""Above all that fits into memory; one such size is within torch's 64 bits, products of several are not."""

Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
