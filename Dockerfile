# The server, on the CPU. Build: docker build -t tortoise-ane . ; run: docker compose up
FROM python:3.12-slim AS build
# g++ compiles the kernels for x86-64 when the package is installed
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/ane
ENV PATH=/opt/ane/bin:$PATH
COPY . /src
# torch's index has builds for the CPU, which are 4 GB smaller than PyPI's
RUN pip install --no-cache-dir '/src[server]' --extra-index-url https://download.pytorch.org/whl/cpu

FROM python:3.12-slim
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home ane && mkdir /models && chown ane /models
COPY --from=build /opt/ane /opt/ane
ENV PATH=/opt/ane/bin:$PATH ANE_HOME=/models
USER ane
# voices, bundles and the cache
VOLUME /models
EXPOSE 8880
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8880/health', timeout=4)"]
# SIGTERM lets requests end
STOPSIGNAL SIGTERM
CMD ["ane", "serve", "--host", "0.0.0.0", "--preload", "heart"]
