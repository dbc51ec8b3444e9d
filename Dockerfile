# cronlock with Python and nothing else, for `docker run` and as a stage to copy from (see examples/Dockerfile).
#
#   docker build -t cronlock .
#   docker run --rm -e CRONLOCK_BACKEND=redis://redis.internal/0 cronlock -v report echo done
ARG PYTHON=python:3.13-slim-bookworm

FROM ${PYTHON} AS build
COPY . /src
# pip compiles what it installs: uid 10001 could not keep what it compiles, and would do it again at each start
RUN python3 -m venv /opt/cronlock && /opt/cronlock/bin/pip install --no-cache-dir --disable-pip-version-check /src

FROM ${PYTHON}
COPY --from=build /opt/cronlock /opt/cronlock
# a number, so that Kubernetes can tell that it is not root
RUN echo 'cronlock:x:10001:10001::/home/cronlock:/usr/sbin/nologin' >>/etc/passwd && install -d -o 10001 -g 10001 /home/cronlock
ENV PATH=/opt/cronlock/bin:$PATH
USER 10001:10001
WORKDIR /home/cronlock
# process 1: it passes signals on, reaps what is left to it, and ends with its command's status. No init is needed around it
ENTRYPOINT ["cronlock"]
CMD ["--help"]
