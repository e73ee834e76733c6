# Operator and agent, from one image: the command says which one runs (weightsync-operator, weightsync-agent).
# No torch: engines bring their own.
#
#   docker build -t weightsync .
#
# BASE_IMAGE: Debian bookworm or something derived from it. What the base already holds is not installed again, so
# that a base that holds everything needs no package mirror.
ARG BASE_IMAGE=docker.io/library/debian:bookworm-slim

FROM ${BASE_IMAGE} AS base
# The libraries are what Mooncake links: RDMA user space, NUMA, curl.
RUN set -eu; \
    wanted="ca-certificates ibverbs-providers libcurl4 libibverbs1 libnuma1 python3 python3-venv"; \
    if ! dpkg -s $wanted >/dev/null 2>&1; then \
        apt-get update; \
        apt-get install -y --no-install-recommends $wanted; \
        rm -rf /var/lib/apt/lists/*; \
    fi

# The names of the third-party packages, as a file of its own: only when they change are they installed anew.
FROM base AS wanted
COPY pyproject.toml /src/
RUN python3 -c "import tomllib; \
project = tomllib.load(open('/src/pyproject.toml', 'rb'))['project']; \
extras = project['optional-dependencies']; \
print(*project['dependencies'], *extras['operator'], *extras['agent'], *extras['cli'], sep='\n')" > /wanted.txt && \
    touch --date=@0 /wanted.txt

# Third-party packages, apart from the sources. pip's cache stays in this stage, or is mounted from outside.
FROM base AS packages
ARG PIP_CERT
ARG PIP_INDEX_URL
RUN python3 -m venv /opt/build && /opt/build/bin/pip install hatchling
RUN python3 -m venv --without-pip /opt/weightsync
WORKDIR /src
COPY requirements/constraints.txt ./
COPY --from=wanted /wanted.txt ./
RUN /opt/build/bin/pip --python /opt/weightsync/bin/python install \
        --requirement wanted.txt --constraint constraints.txt

# The project alone, as what is laid over the environment of the stage before. With its times: compiled files name that
# of their source, and where it differs every process compiles all of it again.
FROM packages AS project
COPY pyproject.toml LICENSE README.md ./
COPY sdk/ sdk/
COPY operator/ operator/
COPY agent/ agent/
COPY cli/ cli/
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . && \
    cd /opt/weightsync && \
    find . -type f | sort > /tmp/before && \
    /opt/build/bin/pip --python bin/python install --no-deps /wheels/*.whl && \
    mkdir /opt/overlay && \
    find . -type f | sort | comm -13 /tmp/before - | xargs cp --parents --preserve=timestamps --target-directory /opt/overlay

FROM base
LABEL org.opencontainers.image.title="WeightSync" \
      org.opencontainers.image.description="Operator and agent: weight synchronisation from RL trainers to rollout engines" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=packages /opt/weightsync /opt/weightsync
COPY --from=project /opt/overlay /opt/weightsync
ENV PATH=/opt/weightsync/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
# kopf asks for the user's name, and whatever uid a cluster gives the container is in no passwd file.
ENV USER=weightsync
USER 65532:65532
WORKDIR /
