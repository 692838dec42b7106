# nibble in a container: the program and the small model on a plain Debian.
#   docker build -t nibble .                              any CPU
#   docker build -t nibble --build-arg PRESET=h200 .      Hopper; PRESET=spark on a DGX Spark
#   docker run -p 8000:8000 -v ~/.cache/huggingface:/cache -e MODEL=openai/gpt-oss-20b nibble
# A GPU needs NVIDIA's container toolkit (--gpus all); compose.yaml has all of it.
ARG DEBIAN=debian:12-slim

FROM ${DEBIAN} AS build
ARG PRESET=cpu
RUN apt-get -qq update && apt-get -qq install -y --no-install-recommends make git ca-certificates
WORKDIR /nibble
COPY . .
RUN make install PRESET=${PRESET} PREFIX=/usr DESTDIR=/out

FROM ${DEBIAN}
RUN apt-get -qq update \
  && apt-get -qq install -y --no-install-recommends ca-certificates \
  && rm -rf /var/lib/apt/lists/* \
  && useradd --system --create-home --home-dir /home/nibble --uid 1000 nibble \
  && install -d -o nibble /cache
COPY --from=build /out/usr/bin /usr/bin
COPY --from=build /out/usr/share /usr/share
COPY packaging/container.sh /usr/local/bin/nibble-container
# Command lines of vLLM's containers name the program so.
RUN ln -s /usr/bin/nibble /usr/local/bin/vllm
ENV HF_HOME=/cache PORT=8000 NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER nibble
WORKDIR /home/nibble
VOLUME /cache
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --start-period=15m --interval=30s --timeout=5s CMD ["nibble-container", "healthy"]
ENTRYPOINT ["nibble-container"]
CMD ["serve"]
