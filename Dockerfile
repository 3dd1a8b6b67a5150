# One image that runs the trainer and nothing else. It uses only what the builder inside every current engine knows.
#
#   build args   BASE               a Debian or Ubuntu image, best by digest
#                VARIANT            cuda | cpu: which requirements/train-VARIANT.lock is installed
#                REVISION           the commit                            -> label org.opencontainers.image.revision
#                LOCK_SHA256        sha256 of that lock; checked          -> label muster.lock
#                CONTRACT           trainer/contract.py VERSION; checked  -> label muster.contract
#                SOURCE_DATE_EPOCH  the commit's time in seconds: what the image calls its age
#   secrets      ca                 a PEM bundle to trust while packages are fetched (a company proxy's, say)
#                pip.conf           where packages come from, if not from pip's own default
#   context      wheels             a folder of extra wheels: --build-context wheels=DIR
#
# Nothing of the secrets or of the wheels folder ends up in a layer. Every file that a step writes gets one fixed time,
# so two builds of one commit on one base are the same image, to the id.
ARG BASE=nvidia/cuda:13.0.0-base-ubuntu24.04

FROM scratch AS wheels

FROM ${BASE}
SHELL ["/bin/sh", "-euc"]

# Only where the base lacks them: an image built on a prepared base needs no package mirror.
RUN if python3 -c 'import ensurepip, venv' 2>/dev/null && [ -e /etc/ssl/certs/ca-certificates.crt ]; then exit; fi; \
    apt-get update -q; \
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends ca-certificates python3 python3-venv; \
    rm -rf /var/lib/apt/lists/* /var/cache/apt /var/cache/ldconfig /var/log/apt /var/log/dpkg.log /var/log/alternatives.log

# Ubuntu brings a user with number 1000 along. Files are written by hand because useradd dates its entries.
RUN sed -i '/^[^:]*:[^:]*:1000:/d' /etc/passwd /etc/group; \
    echo 'muster:x:1000:1000::/tmp:/usr/sbin/nologin' >>/etc/passwd; \
    echo 'muster:x:1000:' >>/etc/group; \
    install -d -m 1777 -o 1000 -g 1000 /run/muster; \
    touch --no-dereference --date=@315532800 /etc /etc/passwd /etc/group /run /run/muster

ARG VARIANT=cuda LOCK_SHA256=
RUN --mount=type=bind,source=requirements,target=/mnt \
    --mount=type=bind,from=wheels,target=/media \
    --mount=type=tmpfs,target=/run --mount=type=secret,id=ca --mount=type=secret,id=pip.conf \
    --mount=type=cache,target=/srv \
    export SOURCE_DATE_EPOCH=315532800; \
    lock=/mnt/train-${VARIANT}.lock; \
    [ -z "$LOCK_SHA256" ] || echo "$LOCK_SHA256  $lock" | sha256sum --check --quiet; \
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi; \
    if [ -s /run/secrets/pip.conf ]; then export PIP_CONFIG_FILE=/run/secrets/pip.conf; fi; \
    python3 -m venv /opt/venv; \
    /opt/venv/bin/pip install --disable-pip-version-check --cache-dir /srv --only-binary :all: \
        --require-hashes --find-links /media -r "$lock" || { \
        echo "next: the $VARIANT variant needs every wheel of requirements/train-$VARIANT.lock from an index (secret pip.conf)" \
            "or from a folder (--build-context wheels=DIR)"; exit 1; } >&2; \
    find /opt /tmp -exec touch --no-dereference --date=@315532800 {} +

ARG CONTRACT=
RUN --mount=type=bind,source=trainer,target=/mnt \
    export SOURCE_DATE_EPOCH=315532800; \
    install -d /opt/muster; \
    cp -r /mnt /opt/muster/trainer; \
    chmod -R a+rX,u+w,go-w /opt/muster; \
    cd /opt/muster; \
    version=$(/opt/venv/bin/python -B -c 'import trainer.contract; print(trainer.contract.VERSION)'); \
    [ "${CONTRACT:-$version}" = "$version" ] || { echo "CONTRACT=$CONTRACT, the code says $version" >&2; exit 1; }; \
    /opt/venv/bin/python -m compileall -q trainer; \
    find /opt -path /opt/venv -prune -o -exec touch --no-dereference --date=@315532800 {} +

# Any user number works: home is /tmp, and a name stands in the environment for those who ask for one.
ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONPATH=/opt/muster PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
    HOME=/tmp USER=muster LOGNAME=muster \
    MUSTER_OUT=/run/muster
ARG REVISION=
LABEL org.opencontainers.image.title="muster" \
      org.opencontainers.image.revision="${REVISION}" \
      muster.variant="${VARIANT}" muster.lock="${LOCK_SHA256}" muster.contract="${CONTRACT}"
USER 1000:1000
WORKDIR /run/muster
ENTRYPOINT ["/opt/venv/bin/python", "-P", "-m", "trainer.entry"]
