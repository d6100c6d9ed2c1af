# The service, with the embedded log; docker-compose.yml adds a Kafka:
#
#   docker build -t chronos .
#   docker run -p 127.0.0.1:7700:7700 -v ./tokens.yaml:/etc/chronos/tokens.yaml:ro \
#     -e CHRONOS_ADMIN__HOST=0.0.0.0 -e CHRONOS_ADMIN__TOKENS=/etc/chronos/tokens.yaml chronos
#
# For several architectures, from the same files: docker buildx build --platform linux/amd64,linux/arm64 -t NAME --push .
#
# With --read-only it needs the volume and nothing else that can be written to.
#
# The digest is the image, of all architectures; the tag says for people which one it is.
FROM python:3.11.15-slim@sha256:90744cff8f32887f075c47d747a173ff333e9e98801667af93c357fa9f5e28ff

WORKDIR /app

# Layers that change rarely come first, so that a change of the code does not install everything again.
COPY locks/requirements.txt locks/
RUN pip install --no-cache-dir --require-hashes --only-binary :all: -r locks/requirements.txt

COPY pyproject.toml PACKAGE.md LICENSE ./
COPY chronos ./chronos
RUN pip install --no-cache-dir --no-index --no-deps --no-build-isolation .

# By number, so that Kubernetes can tell that it is not root.
RUN groupadd --system --gid 10001 chronos \
    && useradd --system --uid 10001 --gid chronos --no-create-home --shell /usr/sbin/nologin chronos \
    && install -d -o chronos -g chronos -m 700 /var/lib/chronos
USER 10001:10001
VOLUME /var/lib/chronos

# It listens inside the container only, as everywhere: with CHRONOS_ADMIN__HOST=0.0.0.0 it starts with a file of tokens
# (CHRONOS_ADMIN__TOKENS), and not without.
ENV CHRONOS_NODE__DATA_DIR=/var/lib/chronos
EXPOSE 7700

# The client reads CHRONOS_SERVER, and with TLS CHRONOS_CA, CHRONOS_CERT and CHRONOS_CERT_KEY.
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import chronos; chronos.Client(timeout_s=5, retries=0).ask('/livez')"]

ENTRYPOINT ["chronos"]
CMD ["serve"]
