# Sourced by ./try and ./test, in the checkout: makes .venv ready, once. `ready run` installs the program, `ready dev` what the tests need too.

unset PYTHONDONTWRITEBYTECODE PYTHONHOME PYTHONPATH # compiled once, or each of the thousand starts compiles everything
export PIP_DISABLE_PIP_VERSION_CHECK=1
py=.venv/bin/python

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

give_up() {
    echo "$*" >&2
    exit 1
}

pick_python() {
    for found in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python}; do
        new_enough "$found" || continue
        "$found" -c 'import ensurepip, venv' 2>/dev/null && return
        without=$found
    done
    [ -z "${without:-}" ] || give_up "$without has no venv module. On Debian and Ubuntu: apt install python3-venv"
    give_up "cronlock needs Python 3.11 or newer, and there is none in PATH (PYTHON=/path/to/python3 ${0##*/} names one)."
}

ready() {
    [ "$(uname -s)" = Linux ] || give_up "cronlock runs on Linux only: it needs /proc, subreapers and pidfds."
    want="$PWD $(cksum <pyproject.toml)" # a moved checkout or other requirements: install again
    if new_enough $py; then
        for stamp in .venv/.ready-dev .venv/.ready-"$1"; do
            [ "$(cat $stamp 2>/dev/null)" != "$want" ] || return 0
        done
    else
        pick_python
        echo "Making .venv with $("$found" --version) ..."
        "$found" -m venv --clear .venv || give_up "No virtual environment could be made, see above."
    fi
    echo "Installing the checkout into .venv ..."
    if [ "$1" = dev ]; then
        # dependency groups came with pip 25.1
        $py -c 'import pip, sys; sys.exit(tuple(map(int, pip.__version__.split(".")[:2])) < (25, 1))' ||
            $py -m pip install -q --upgrade 'pip>=25.1' || give_up "pip could not be upgraded, see above."
        $py -m pip install -q --root-user-action=ignore --group dev -e . || give_up "Not installed, see above."
    else
        $py -m pip install -q --root-user-action=ignore -e . || give_up "Not installed, see above."
    fi
    echo "$want" >.venv/.ready-"$1"
}
