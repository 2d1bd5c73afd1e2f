# The training sidecar: trains a preset, exports it and publishes it into the volume that the service reads.

# Packages that take precedence over the registry's: `--build-context wheels=FOLDER` replaces this stage.
FROM scratch AS wheels

FROM python:3.11-slim-bookworm
# The compiler is for Triton, which compiles the kernels of routing on a GPU.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin capsnet \
 && mkdir -p /var/lib/capsnet/models /var/lib/capsnet/runs /var/lib/capsnet/data \
 && chown -R capsnet:capsnet /var/lib/capsnet
ENV PIP_ROOT_USER_ACTION=ignore \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    CAPSNET_DATA=/var/lib/capsnet/data
WORKDIR /build
COPY pyproject.toml constraints.txt ./
# An additional package index for torch, such as one of builds for the CPU.
ARG TORCH_INDEX=
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=bind,from=wheels,target=/wheels \
    touch README.md \
 && pip install --find-links /wheels ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} \
        --constraint constraints.txt '.[cpu,train]'
COPY training training
COPY export export
COPY service service
COPY capsnet capsnet
RUN pip install --no-deps --force-reinstall .
COPY --chmod=755 docker/train_and_publish.py /usr/local/bin/train-and-publish
# The commit for the manifest; there is no git in the image.
ARG CAPSNET_COMMIT=
ENV CAPSNET_COMMIT=$CAPSNET_COMMIT
WORKDIR /var/lib/capsnet
USER capsnet
STOPSIGNAL SIGTERM
CMD ["train-and-publish"]
