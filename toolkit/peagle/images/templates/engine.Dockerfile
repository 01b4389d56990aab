ARG BASE
FROM ${BASE}
ARG BASE
LABEL org.opencontainers.image.base.name="${BASE}"
RUN ["python3", "-c", "import ctypes, subprocess as s, sys\ntry: ctypes.CDLL('libnuma.so.1'); sys.exit()\nexcept OSError: pass\ns.run(['apt-get', 'update'], check=True)\ns.run(['apt-get', 'install', '-y', '--no-install-recommends', 'libnuma1'], check=True)\ns.run(['find', '/var/lib/apt/lists', '-type', 'f', '-delete'], check=True)\n"]
RUN ["python3", "-m", "venv", "--without-pip", "/opt/peagle-engine"]
ADD engine.tar /opt/peagle-engine/
ENV PATH="/opt/peagle-engine/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
RUN ["python3", "-c", "import vllm.entrypoints.openai.api_server, vllm.v1.engine.core, vllm.v1.worker.cpu_worker"]
