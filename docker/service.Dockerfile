# The service. Three targets:
#   cpu       ONNX Runtime on the processor; the default target
#   gpu       ONNX Runtime on CUDA; its libraries are Python packages, the driver is the machine's
#   tensorrt  the same with TensorRT

FROM python:3.11-slim-bookworm AS base
# A fixed id, so that a volume keeps its owner when the image is rebuilt.
RUN useradd --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin capsnet \
 && mkdir -p /var/lib/capsnet/models /var/cache/capsnet \
 && chown -R capsnet:capsnet /var/lib/capsnet /var/cache/capsnet
# The image's own bundles and those of the volume are in two folders: an old volume does not hide the bundles
# of a newer image.
ENV PATH=/opt/capsnet/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    CAPSNET_HOST=0.0.0.0 \
    CAPSNET_PORT=8000 \
    CAPSNET_MODELS=/srv/models:/var/lib/capsnet/models \
    CAPSNET_CACHE=/var/cache/capsnet
WORKDIR /srv
# Readable whatever the umask of the checkout. Letters (a+rX) would need a newer Dockerfile syntax.
COPY --chmod=755 models models
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=2m --start-interval=2s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen(f'http://127.0.0.1:{os.environ[\"CAPSNET_PORT\"]}/readyz', timeout=4)"]
CMD ["capsnet-serve"]

# Dependencies first, on their own: they stay in the build cache when only our code changes. So the project is
# installed twice, the first time without its packages. The dependencies' test suites, the graph tools of ONNX
# Runtime, large debugging symbols and, on CPUs, the library of ONNX Runtime for C++, which its module for Python does not
# load, are left out: a quarter of the size, and the service needs none of them.
FROM python:3.11-slim-bookworm AS build
RUN apt-get update && apt-get install --yes --no-install-recommends binutils \
 && rm -rf /var/lib/apt/lists/* \
 && python -m venv --without-pip /opt/capsnet
WORKDIR /build
COPY pyproject.toml constraints.txt constraints-cuda.txt ./
RUN touch README.md

# Our own code: only what the service imports. The commands that train and export are removed below.
FROM scratch AS code
COPY export/__init__.py export/
COPY export/contract export/contract
COPY export/fast_convolution export/fast_convolution
COPY export/optimize export/optimize
COPY service service
COPY capsnet capsnet

FROM build AS build-gpu
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /opt/capsnet/bin/python install --constraint constraints.txt --constraint constraints-cuda.txt '.[gpu,grpc,heif]' \
 && find /opt/capsnet/lib -type d \( -name tests -o -path '*/onnxruntime/transformers' -o -path '*/onnx/backend/test' \) -prune -exec rm -r {} + \
 && find /opt/capsnet/lib -path '*/ml_dtypes/*.so' -exec strip {} + -o -path '*/uvloop/*.so' -exec strip {} + -o -name 'rapidjson*.so' -exec strip {} +
COPY --from=code / ./
RUN pip --python /opt/capsnet/bin/python install --no-deps --force-reinstall . \
 && rm /opt/capsnet/bin/capsnet-train /opt/capsnet/bin/capsnet-export

# TensorRT alone. The package fetches its libraries from NVIDIA as it is installed.
FROM build AS build-tensorrt
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /opt/capsnet/bin/python install --constraint constraints-cuda.txt tensorrt-cu13-libs

FROM build AS build-cpu
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /opt/capsnet/bin/python install --constraint constraints.txt '.[cpu,grpc,heif]' \
 && find /opt/capsnet/lib -type d \( -name tests -o -path '*/onnxruntime/transformers' -o -path '*/onnx/backend/test' \) -prune -exec rm -r {} + \
 && rm /opt/capsnet/lib/python3.11/site-packages/onnxruntime/capi/libonnxruntime.so.* \
 && find /opt/capsnet/lib -path '*/ml_dtypes/*.so' -exec strip {} + -o -path '*/uvloop/*.so' -exec strip {} + -o -name 'rapidjson*.so' -exec strip {} +
COPY --from=code / ./
RUN pip --python /opt/capsnet/bin/python install --no-deps --force-reinstall . \
 && rm /opt/capsnet/bin/capsnet-train /opt/capsnet/bin/capsnet-export

FROM base AS gpu
ENV CAPSNET_DEVICE=cuda \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=build-gpu /opt/capsnet /opt/capsnet
USER capsnet

FROM gpu AS tensorrt
ENV CAPSNET_DEVICE=tensorrt
COPY --from=build-tensorrt /opt/capsnet/lib /opt/capsnet/lib

FROM base AS cpu
ENV CAPSNET_DEVICE=cpu
COPY --from=build-cpu /opt/capsnet /opt/capsnet
USER capsnet
