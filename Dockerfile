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

# Third-party packages, apart from the sources: a change of the sources leaves this stage as it is.
FROM base AS packages
ARG PIP_CERT
ARG PIP_INDEX_URL
WORKDIR /src
RUN python3 -m venv /opt/build && /opt/build/bin/pip install --no-cache-dir hatchling
RUN python3 -m venv --without-pip /opt/weightsync
COPY pyproject.toml requirements/constraints.txt ./
RUN python3 -c "import tomllib; \
project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
extras = project['optional-dependencies']; \
print(*project['dependencies'], *extras['operator'], *extras['agent'], sep='\n')" > wanted.txt && \
    /opt/build/bin/pip --python /opt/weightsync/bin/python install --no-cache-dir \
        --requirement wanted.txt --constraint constraints.txt

# The project alone, as what is laid over the environment of the stage before.
FROM packages AS project
COPY LICENSE README.md ./
COPY sdk/ sdk/
COPY operator/ operator/
COPY agent/ agent/
COPY cli/ cli/
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels . && \
    cp -a /opt/weightsync /opt/before && \
    /opt/build/bin/pip --python /opt/weightsync/bin/python install --no-cache-dir --no-deps /wheels/*.whl && \
    mkdir /opt/overlay && cd /opt/weightsync && \
    find . -type f | while read -r file; do \
        [ -e "/opt/before/$file" ] || cp --parents "$file" /opt/overlay/; \
    done

FROM base
LABEL org.opencontainers.image.title="WeightSync" \
      org.opencontainers.image.description="Operator and agent: weight synchronisation from RL trainers to rollout engines" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=packages /opt/weightsync /opt/weightsync
COPY --from=project /opt/overlay /opt/weightsync
ENV PATH=/opt/weightsync/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
WORKDIR /
