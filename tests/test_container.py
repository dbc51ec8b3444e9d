"""The Dockerfiles, built by a real builder. No registry is asked: Debian's own packages stand in for the image with Python."""

import json
import os
import shutil
import subprocess

import pytest

import cronlock
from pages import ROOT

pytestmark = [pytest.mark.root, pytest.mark.slow]
NEEDS = {"buildah": "buildah", "apt-get": "apt", "unshare": "util-linux"}
PACKAGES = ("base-files", "dash", "coreutils", "grep", "python3-venv")
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"


class Builder:
    def __init__(self, place):
        self.buildah = ["buildah", "--root", f"{place}/storage", "--runroot", f"{place}/run"]

    def __call__(self, *argv):
        done = subprocess.run([*self.buildah, *map(str, argv)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def build(self, directory, **arguments):
        given = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
        mounted = (
            ["--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro"] if os.path.exists(CERTIFICATES) else []
        )  # a proxy's own, where there is one
        return self("bud", "--quiet", "--isolation", "chroot", *mounted, *given, "--file", directory / "Dockerfile", directory)

    def start(self, image, *argv, given=()):
        """What the image's entrypoint makes of `argv`, as process 1 of a namespace and as the image's user."""
        root = self("mount", self("from", "--pull-never", image))
        config = json.loads(self("inspect", "--type", "image", image))["OCIv1"]["config"]
        environ = [*config["Env"], "HOME=/home/cronlock", *given]
        inside = ["chroot", f"--userspec={config['User']}", root, "env", "-i", *environ, *config["Entrypoint"], *(argv or config["Cmd"])]
        script = 'mount -t proc proc "$0/proc"; mount --bind /dev "$0/dev"; exec "$@"'
        unshare = ["unshare", "--pid", "--fork", "--mount", "--kill-child", "sh", "-ec", script, root]
        return subprocess.Popen([*unshare, *inside], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, image, *argv, given=()):
        process = self.start(image, *argv, given=given)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err


@pytest.fixture(scope="module")
def builder(tmp_path_factory):
    absent = sorted(package for program, package in NEEDS.items() if not shutil.which(program))
    if os.geteuid() != 0 or absent:
        reason = f"needs Debian's packages {' '.join(absent)}" if absent else "needs root"
        (pytest.fail if os.environ.get("CI") == "true" and os.geteuid() == 0 else pytest.skip)(reason)
    place = tmp_path_factory.mktemp("container")
    build = Builder(place)
    unpacked(place)
    container = build("from", "scratch")
    build("add", "--quiet", container, place / "base", "/")
    build("commit", "--quiet", container, "localhost/python")
    shutil.rmtree(place / "base")
    yield build
    build("umount", "--all")
    build("rm", "--all")
    build("rmi", "--all", "--force")


def unpacked(place):
    """Debian with Python below place/base: its packages as they are, without the minutes that dpkg needs to set them up."""
    (place / "archives/partial").mkdir(parents=True)
    (place / "status").touch()
    own = [
        f"Dir::State::status={place}/status",
        f"Dir::Cache::archives={place}/archives",
        "Debug::NoLocking=1",
        "APT::Install-Recommends=0",
    ]
    fetch = ["apt-get", "-qqy", *(word for one in own for word in ("-o", one)), "--download-only", "install", *PACKAGES]
    done = subprocess.run(fetch, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    for package in sorted((place / "archives").glob("*.deb"), key=lambda path: not path.name.startswith("base-files_")):  # its links first
        subprocess.run(["dpkg", "-x", package, place / "base"], check=True)
        package.unlink()


def test_the_image(builder, tmp_path):
    image = builder.build(ROOT, PYTHON="localhost/python")
    assert builder.run(image, "--version") == (0, f"cronlock {cronlock.__version__}\n", "")
    assert "Usage: cronlock" in builder.run(image)[1]

    # not root, and process 1 reaps what a command leaves behind
    script = "id -u; (sleep 0.1 & exec sleep 0) & sleep 0.5; cat /proc/[0-9]*/stat | grep -c ' Z '; exit 7"
    assert builder.run(image, "job", "sh", "-c", script) == (7, "10001\n0\n", "")

    # `docker stop` sends TERM to process 1
    process = builder.start(image, "job", "sh", "-c", "trap 'echo stopped; exit 9' TERM; echo up; while :; do sleep 0.1; done")
    assert process.stdout.readline() == "up\n"
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
        os.kill(int(file.read()), 15)
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (9, "stopped\n")

    # the example that builds on it
    shutil.copy(ROOT / "examples/Dockerfile", tmp_path)
    (tmp_path / "import-orders").write_text("#!/bin/sh\necho imported by $CRONLOCK_RUN_NAME\n")
    shop = builder.build(tmp_path, PYTHON="localhost/python", CRONLOCK=image)
    status, _, err = builder.run(shop)
    assert status == 77 and "/home/cronlock" in err  # no store was given, and its user has no directory there
    assert builder.run(shop, given=["CRONLOCK_BACKEND=flock:///tmp"]) == (0, "imported by import-orders\n", "")
