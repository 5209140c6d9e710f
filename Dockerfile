# gmi-drl in a container.
#
#   docker build -t gmi-drl .                                    CPU cores
#   docker build -t gmi-drl:cuda --target cuda .                 GPUs
#   docker run --rm -v "$PWD:/work" gmi-drl launch config.yaml
#   docker run --rm --gpus all -v "$PWD:/work" gmi-drl:cuda doctor
#
# Nothing of a run lies in /dev/shm, so no --shm-size is needed. MPS comes with the driver, and is
# brought in by NVIDIA's container toolkit. Of MIG only instances that exist can be used from inside.
FROM python:3.12-slim-bookworm AS cpu
ARG TORCH=torch==2.13.0

# What draws without a display (gmi-drl video).
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libegl1 libgl1-mesa-dri \
    && rm -rf /var/lib/apt/lists/*

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1
RUN pip install "$TORCH"
COPY . /opt/gmi-drl
RUN pip install "/opt/gmi-drl[mujoco,video,export,page]"

RUN useradd --create-home trainer && mkdir /work && chown trainer /work
USER trainer
WORKDIR /work
ENTRYPOINT ["gmi-drl"]
CMD ["--help"]

FROM cpu AS cuda
USER root
RUN pip install "/opt/gmi-drl[cuda,warp]"
USER trainer
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility

FROM cpu
