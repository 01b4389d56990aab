# vLLM {vllm}, with an entrypoint that checks the environment, exits with the engine, and reports
# how many drafts are accepted.
ARG BASE={base}
FROM ${{BASE}}

{labels}

COPY peagle /opt/peagle
COPY --chown={user} cache {cache}
{weights}
{environment}

USER {user}
WORKDIR {cache}
EXPOSE 8080
ENTRYPOINT ["python3", "/opt/peagle/peagle_serve"]
# SageMaker starts the container with the argument `serve`, which is optional for the entrypoint.
CMD ["serve"]
