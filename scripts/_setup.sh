# Sourced by the other scripts: .venv with this checkout installed in it, and its commands first.
#
#   setup EXTRA     makes .venv if it is missing, and installs when pyproject.toml has changed
#
# PYTHON names the interpreter to make .venv with, TORCH the torch to install, VENV another folder
# than .venv.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${VENV:-$root/.venv}
torch=${TORCH:-torch==2.13.0}
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
unset PYTHONDONTWRITEBYTECODE # else each process compiles again what it imports, for seconds

say() { printf '%s\n' "$*" >&2; }

fail() {
    say "$*"
    exit 1
}

supported() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null
}

find_python() {
    local name
    for name in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if supported "$name"; then
            command -v "$name"
            return
        fi
    done
    fail "No Python 3.11 to 3.13 among: ${PYTHON:-python3 python3.13 python3.12 python3.11}." \
        "Install one, or name one: PYTHON=/path/to/python $0"
}

make_venv() {
    if supported "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        return
    fi
    local python
    python=$(find_python)
    say "Making $venv with $("$python" --version) ..."
    "$python" -m venv --clear "$venv" || fail "$python cannot make a virtual environment." \
        "On Debian or Ubuntu: apt install python3-venv"
}

install() {
    # Python compiles what it imports; to compile all that is installed takes minutes.
    say "Installing $torch and gmi-drl[$1] into $venv; this takes a few minutes the first time ..."
    "$venv/bin/python" -m pip install --quiet --no-compile "$torch"
    "$venv/bin/python" -m pip install --quiet --no-compile --editable "$root[$1]"
}

# What an installation depends on; the same text means that nothing needs to be done.
stamp_text() {
    printf '%s\n' "$root" "$torch" "$("$venv/bin/python" --version)"
    cat "$root/pyproject.toml"
}

setup() {
    local extra=$1 stamp=$venv/installed-$1
    if command -v flock >/dev/null; then # two scripts at once: the second waits
        mkdir -p "$venv"
        exec 9<"$venv"
        flock 9
    fi
    make_venv
    if ! stamp_text | cmp -s - "$stamp"; then
        rm -f "$stamp"
        install "$extra"
        stamp_text >"$stamp"
    fi
    exec 9>&-
    export PATH="$venv/bin:$PATH" VIRTUAL_ENV=$venv
}
