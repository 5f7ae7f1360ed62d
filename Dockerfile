# A small image that runs as an unprivileged user.
#   docker build -t tidegate .
#   docker run -p 8080:8080 -v ./policy.yaml:/etc/tidegate/policy.yaml:ro -v tidegate:/var/lib/tidegate tidegate
# The policy must contain `listen: 0.0.0.0:8080` and `store: { directory: /var/lib/tidegate }`.

FROM rust:1.95-slim-bookworm AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends cmake g++ make \
    && rm -rf /var/lib/apt/lists/*
# Use the toolchain of the base image; development components are not needed.
ENV RUSTUP_TOOLCHAIN=1.95.0
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --package tidegate \
    && cp target/release/tidegate /tidegate \
    && mkdir /state && chmod 700 /state

FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /tidegate /usr/local/bin/tidegate
COPY --from=build --chown=nonroot:nonroot /state /var/lib/tidegate
USER nonroot
VOLUME /var/lib/tidegate
EXPOSE 8080
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/tidegate"]
CMD ["serve", "--config", "/etc/tidegate/policy.yaml"]
