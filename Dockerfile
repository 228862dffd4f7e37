# dtrain with torch for CUDA:   docker build --tag dtrain .
# Ranks share memory: run it with --shm-size=8g or --ipc=host, and --gpus=all.
FROM python:3.11-slim-bookworm
WORKDIR /opt/dtrain
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY declarative_train declarative_train
RUN pip install --no-cache-dir --constraint constraints.txt ".[images,s3,safetensors,text]" \
    && useradd --create-home --uid 1000 dtrain
USER 1000
WORKDIR /home/dtrain
CMD ["dtrain", "--help"]
