# A server for models in INT8: without PyTorch and transformers.
#
#     docker build --tag qdqbert .
#     docker run --publish 8000:8000 --volume "$PWD/my-model-int8:/models/my-model-int8:ro" qdqbert /models/my-model-int8
#
# It runs as any user (--user 12345) and on a read-only root (--read-only). /cache keeps models of the hub and packed models.
# With ONNX Runtime or OpenVINO: --build-arg EXTRAS=serve,onnxruntime or EXTRAS=serve,openvino
FROM python:3.13-slim
ARG EXTRAS=serve
COPY constraints.txt pyproject.toml README.md LICENSE /source/
COPY src /source/src
RUN pip install --no-cache-dir --constraint /source/constraints.txt "/source[$EXTRAS]" \
    && rm -r /source \
    && mkdir --mode 1777 /cache
# huggingface_hub and qdqbert have folders of their own in it.
ENV XDG_CACHE_HOME=/cache
VOLUME /cache
# Python's last place for temporary files, and the only one on a read-only root.
WORKDIR /cache
USER 10001:10001
EXPOSE 8000
# Without a proxy, on the port of the server's command line.
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import http.client, re; port = (re.search(r'--port[=\\0](\\d+)', open('/proc/1/cmdline').read()) or [0, '8000'])[1]; server = http.client.HTTPConnection('localhost', int(port), timeout=10); server.request('GET', '/health'); raise SystemExit(server.getresponse().status != 200)"]
ENTRYPOINT ["qdqbert", "serve", "--host", "0.0.0.0"]
