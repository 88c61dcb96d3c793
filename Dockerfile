# A server for models that `qdqbert quantize` wrote: without PyTorch and transformers.
#
#     docker build --tag qdqbert .
#     docker run --publish 8000:8000 --volume "$PWD/my-model-int8:/models/my-model-int8:ro" qdqbert /models/my-model-int8
FROM python:3.13-slim
COPY pyproject.toml README.md LICENSE /source/
COPY src /source/src
RUN pip install --no-cache-dir '/source[openvino,serve]' && rm -r /source \
    && useradd --create-home server
USER server
EXPOSE 8000
HEALTHCHECK CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://localhost:8000/health')"]
ENTRYPOINT ["qdqbert", "serve", "--host", "0.0.0.0"]
