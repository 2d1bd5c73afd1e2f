# The service. Two targets:
#   cpu   ONNX Runtime on the processor, and what is built when no target is named
#   gpu   ONNX Runtime on CUDA: its libraries come as Python packages, the driver from the machine

FROM python:3.11-slim-bookworm AS base
# A fixed number, so that a volume keeps its owner when the image is built anew.
RUN useradd --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin capsnet \
 && mkdir -p /var/lib/capsnet/models /var/cache/capsnet \
 && chown -R capsnet:capsnet /var/lib/capsnet /var/cache/capsnet
# The image's own bundles and those of the volume stand side by side: a volume that was filled once hides
# nothing that a newer image brings.
ENV PATH=/opt/capsnet/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    CAPSNET_HOST=0.0.0.0 \
    CAPSNET_PORT=8000 \
    CAPSNET_MODELS=/srv/models:/var/lib/capsnet/models \
    CAPSNET_CACHE=/var/cache/capsnet
WORKDIR /srv
COPY models models
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=2m --start-interval=2s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen(f'http://127.0.0.1:{os.environ[\"CAPSNET_PORT\"]}/readyz', timeout=4)"]
CMD ["capsnet-serve"]

# Dependencies first, by themselves: they stay in the build cache when only our code changes. The project is
# installed twice for that, at first with no packages in it. Their test suites and the graph tools of ONNX
# Runtime stay behind, and so do symbols for debuggers where they are most of a library: a fifth of the whole,
# and nothing that serves needs them.
FROM python:3.11-slim-bookworm AS build
RUN apt-get update && apt-get install --yes --no-install-recommends binutils \
 && rm -rf /var/lib/apt/lists/* \
 && python -m venv --without-pip /opt/capsnet
WORKDIR /build
COPY pyproject.toml constraints.txt ./
RUN touch README.md

FROM build AS build-gpu
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /opt/capsnet/bin/python install --constraint constraints.txt '.[gpu]' \
 && find /opt/capsnet/lib -type d \( -name tests -o -path '*/onnxruntime/transformers' -o -path '*/onnx/backend/test' \) -prune -exec rm -r {} + \
 && find /opt/capsnet/lib -path '*/ml_dtypes/*.so' -exec strip {} + -o -path '*/uvloop/*.so' -exec strip {} +
COPY training training
COPY export export
COPY service service
COPY capsnet capsnet
RUN pip --python /opt/capsnet/bin/python install --no-deps --force-reinstall .

FROM build AS build-cpu
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /opt/capsnet/bin/python install --constraint constraints.txt '.[cpu]' \
 && find /opt/capsnet/lib -type d \( -name tests -o -path '*/onnxruntime/transformers' -o -path '*/onnx/backend/test' \) -prune -exec rm -r {} + \
 && find /opt/capsnet/lib -path '*/ml_dtypes/*.so' -exec strip {} + -o -path '*/uvloop/*.so' -exec strip {} +
COPY training training
COPY export export
COPY service service
COPY capsnet capsnet
RUN pip --python /opt/capsnet/bin/python install --no-deps --force-reinstall .

FROM base AS gpu
ENV CAPSNET_DEVICE=cuda \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=build-gpu /opt/capsnet /opt/capsnet
USER capsnet

FROM base AS cpu
ENV CAPSNET_DEVICE=cpu
COPY --from=build-cpu /opt/capsnet /opt/capsnet
USER capsnet
