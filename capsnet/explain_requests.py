"""The request that explains a picture, and its response."""

from capsnet.answers import read_json
from capsnet.exchange import Exchange, Params, params
from capsnet.explanations import Explanation, to_explanation
from capsnet.picture_requests import post_pictures
from capsnet.uploads import Picture, load


def explain(picture: Picture, label: str | None, query: Params) -> Exchange[Explanation]:
    """How routing came to its answer for a picture."""
    upload = load(picture)
    response = yield from post_pictures("/explain", {**query, **params(label=label)}, [upload])
    return read_json(response, lambda body: to_explanation(body, upload.filename))
