"""Which answers of a service on a GPU are as they should be."""

import httpx
import pytest

from benchmarks.gpu import answers

REFUSED = httpx.Response(422, json={"type": "/problems/refused-model"})
BROKEN = httpx.Response(500, json={"type": "/problems/internal-error"})
ANSWERED = httpx.Response(200, json={"results": []})


@pytest.mark.parametrize(
    ("architecture", "precision", "answer", "as_they_should_be"),
    [
        ("capsnet", "float32", ANSWERED, True),
        ("capsnet", "half", ANSWERED, True),
        ("capsnet", "half", REFUSED, False),
        ("matrix-capsnet", "float32", ANSWERED, True),
        ("matrix-capsnet", "float32", REFUSED, False),
        ("matrix-capsnet", "half", REFUSED, True),
        ("matrix-capsnet", "half", ANSWERED, False),
        ("matrix-capsnet", "half", BROKEN, False),
    ],
)
def test_in_half_precision_matrix_capsules_must_be_refused(
    architecture, precision, answer, as_they_should_be
):
    manifest = {"architecture": architecture, "views": 1}
    listed = httpx.Response(200, json={"versions": [{"manifest": manifest}]})

    def respond(request: httpx.Request) -> httpx.Response:
        return listed if request.method == "GET" else answer

    with httpx.Client(transport=httpx.MockTransport(respond), base_url="http://service") as client:
        assert answers.ask(client, "a-model", precision) == as_they_should_be
