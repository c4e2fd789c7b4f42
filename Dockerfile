# Built for CPU by podman and buildah only; the images for TPU and CUDA have not been built yet.
#
#   docker build --tag backbone .                                     # CPU
#   docker build --tag backbone --build-arg EXTRAS=gcs,tpu .
#   docker build --tag backbone --build-arg EXTRAS=gcs,cuda12 .       # or cuda13; run with --gpus=all
#   docker run --rm backbone python train.py --help
#   docker run --rm --volume "$PWD/runs:/backbone/runs" --user "$(id -u)" backbone python train.py
ARG BASE=debian:12.11-slim
FROM ${BASE}

# tini is process 1: it passes signals on, so that a run saves when its container is stopped.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-venv tini \
    && rm -rf /var/lib/apt/lists/*

# The dependencies, before the code: a change of the code does not install them again.
ARG EXTRAS=gcs
WORKDIR /backbone
COPY pyproject.toml README.md LICENSE ./
RUN python3 -c 'import sys, tomllib; \
known = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
unknown = set(filter(None, sys.argv[1].split(","))) - set(known); \
sys.exit(f"EXTRAS: no {sorted(unknown)} in pyproject.toml" if unknown else 0)' "${EXTRAS}" \
    && python3 -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir --disable-pip-version-check ".[${EXTRAS}]" \
    && rm -r build ./*.egg-info

COPY . .

# Anyone may write to runs/ and to the home directory: with --user, the container has another user.
RUN useradd --uid 1000 --home-dir /home/backbone backbone \
    && install --directory --mode=1777 /home/backbone runs
USER 1000
ENV HOME=/home/backbone PATH=/opt/venv/bin:${PATH} PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1

ENTRYPOINT ["tini", "--"]
CMD ["python", "train.py", "--help"]
