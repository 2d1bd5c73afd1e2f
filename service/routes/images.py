"""The images that /classify and /segment take."""

from typing import Any

from service.http.openapi import FILE

IMAGES_BODY: dict[str, Any] = {
    "requestBody": {
        "description": "A model of two views takes consecutive files as pairs, the left view first, or an "
        "array [N, H, W, 2].",
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["images"],
                    "properties": {"images": {"type": "array", "items": FILE, "minItems": 1}},
                    "additionalProperties": False,
                }
            },
            "image/*": {"schema": FILE},
            "application/octet-stream": {"schema": FILE},
            "application/x-npy": {"schema": FILE},
        },
    }
}
