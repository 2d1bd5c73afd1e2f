"""A plain FastAPI handler: one run for each request, in Starlette's thread pool."""

import sys
from typing import Annotated

import uvicorn
from encoder import answer, decode, load_session, run, to_json
from fastapi import Body, FastAPI, Response

app = FastAPI()
session = load_session()


@app.post("/classify")
def classify(png: Annotated[bytes, Body(media_type="image/png")]) -> Response:
    """Decode, run, answer."""
    probabilities, poses = run(session, decode(png)[None])
    return Response(to_json(answer(probabilities[0], poses[0])), media_type="application/json")


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", access_log=False)
