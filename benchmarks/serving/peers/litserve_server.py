"""LitServe: its HTTP process and one worker, which runs batches of what waits."""

import sys
from typing import Annotated

import litserve
import numpy as np
from encoder import MAX_BATCH, Floats, answer, decode, load_session, run, to_json
from fastapi import Body, Response


class Classify(litserve.LitAPI):
    """Each method is a stage that LitServe calls in the worker."""

    def setup(self, _device: str) -> None:
        """Load the session."""
        self.session = load_session()

    def decode_request(self, request: Annotated[bytes, Body(media_type="image/png")]) -> Floats:
        """A PNG to pixels [H, W, 1]."""
        return decode(request)

    def batch(self, inputs: list[Floats]) -> Floats:
        """[N, H, W, 1]."""
        return np.stack(inputs)

    def predict(self, x: Floats) -> tuple[Floats, Floats]:
        """Probabilities and poses; of one picture where LitServe runs without batches."""
        return run(self.session, x)

    def unbatch(self, output: tuple[Floats, Floats]) -> list[tuple[Floats, Floats]]:
        """One pair for each picture."""
        return list(zip(*output, strict=True))

    def encode_response(self, output: tuple[Floats, Floats]) -> Response:
        """The answer as JSON."""
        return Response(to_json(answer(*output)), media_type="application/json")


if __name__ == "__main__":
    # A wait of 0 would switch batches off; 5 ms is a little over one run.
    api = Classify(max_batch_size=MAX_BATCH, batch_timeout=0.005, api_path="/classify")
    server = litserve.LitServer(api, accelerator="cpu", fast_queue=True, track_requests=False)
    server.run(port=int(sys.argv[1]), host="127.0.0.1", log_level="warning", generate_client_file=False)
