# The service: `docker build -t chronos . && docker run -p 127.0.0.1:7700:7700 chronos` serves with the embedded log.
# docker-compose.yml adds a Kafka.
FROM python:3.11-slim

WORKDIR /app

# Layers that change rarely come first, so that a change of the code does not install everything again.
COPY locks/requirements.txt ./
RUN pip install --no-cache-dir --require-hashes --only-binary :all: -r locks/requirements.txt

COPY pyproject.toml PACKAGE.md LICENSE ./
COPY chronos ./chronos
RUN pip install --no-cache-dir --no-index --no-deps --no-build-isolation .

RUN useradd --system --uid 10001 chronos && install -d -o chronos -m 700 /var/lib/chronos
USER chronos
VOLUME /var/lib/chronos

# It listens on all addresses of the container, without tokens: restrict access by the ports you publish, or set
# CHRONOS_ADMIN__TOKENS to a file of tokens.
ENV CHRONOS_NODE__DATA_DIR=/var/lib/chronos \
    CHRONOS_ADMIN__HOST=0.0.0.0 \
    CHRONOS_ADMIN__OPEN=true
EXPOSE 7700

ENTRYPOINT ["chronos"]
CMD ["serve"]
