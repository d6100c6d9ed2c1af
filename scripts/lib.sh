# Shared by the scripts next to it; not meant to be run. Sourced by bash with `set -euo pipefail` on.
#
# Everything lives in the checkout (.venv, .cache) and is made once: a step is repeated only when what it
# was made from has changed.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
VENV="$ROOT/.venv"
CACHE="$ROOT/.cache"

say() { printf '%s\n' "$*" >&2; }
fail() {
    say "error: $1"
    shift
    local line
    for line in "$@"; do say "       $line"; done
    exit 1
}

# answer_help PROGRAM ARGUMENT...: with -h or --help among the arguments, prints the comment at the top of the script and what
# PROGRAM of .venv says to --help, and exits. Sets nothing up: without a .venv, and with an empty PROGRAM, there is the comment only.
answer_help() {
    local program argument
    read -ra program <<<"$1"
    shift
    for argument in "$@"; do
        [[ "$argument" == -h || "$argument" == --help ]] || continue
        sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0"
        if [[ ${#program[@]} -gt 0 && -x "$VENV/bin/${program[0]}" ]]; then
            printf '\n'
            (cd "$ROOT" && "$VENV/bin/${program[0]}" "${program[@]:1}" --help 2>/dev/null) || true
        elif [[ ${#program[@]} -gt 0 ]]; then
            printf '\nIts options are listed here too once .venv is made, which any run does.\n'
        fi
        exit 0
    done
}

# ------------------------------------------------------------------------------------------- Python

# Prints the path of a Python that can run Chronos: $PYTHON if set, else the first suitable one found.
# A name that exists is not enough: version managers leave names behind that do not start.
find_python() {
    local names=(python3 python3.13 python3.12 python3.11 python) name found no_venv=""
    if [[ -n "${PYTHON:-}" ]]; then names=("$PYTHON"); fi
    for name in "${names[@]}"; do
        found=$("$name" -c 'import sys; sys.version_info >= (3, 11) and print(sys.executable)' 2>/dev/null </dev/null) || continue
        [[ -n "$found" ]] || continue
        if "$found" -c 'import ensurepip, venv' 2>/dev/null </dev/null; then
            printf '%s\n' "$found"
            return
        fi
        no_venv=$found
    done
    if [[ -n "$no_venv" ]]; then
        fail "$no_venv cannot make virtual environments: its venv module is missing." \
            "Install it (on Debian and Ubuntu: apt install python3-venv) and run this again."
    fi
    if [[ -n "${PYTHON:-}" ]]; then
        fail "PYTHON=$PYTHON is not a Python 3.11 or newer."
    fi
    fail "Chronos needs Python 3.11, 3.12 or 3.13, and none of ${names[*]} is one." \
        "Install it (Debian, Ubuntu: apt install python3 python3-venv; macOS: brew install python@3.13)," \
        "or name one: PYTHON=<path of a python> $0"
}

# digest FILE...: one digest of the files' contents.
digest() {
    if command -v sha256sum >/dev/null; then cat "$@" | sha256sum; else cat "$@" | shasum -a 256; fi | cut -d' ' -f1
}

# is_current STAMP WHAT: true if the step that leaves STAMP was last done for exactly WHAT.
is_current() { [[ -f "$1" && "$(<"$1")" == "$2" ]]; }

# identity PYTHON: its version and where it is installed, the same for a virtual environment of it.
identity() { "$1" -c 'import sys; print(sys.version, sys.base_prefix)' 2>/dev/null </dev/null; }

# take_turn NAME, end_turn: scripts that set up the same at once take turns; without flock (macOS) only one may be started.
take_turn() {
    exec 9>"$CACHE/$1.lock"
    if command -v flock >/dev/null; then flock 9; fi
}
end_turn() { exec 9>&-; }

# set_up_python LOCK: a .venv that holds what LOCK names, and Chronos itself, editable.
set_up_python() {
    local lock=$1 python=$VENV/bin/python locked project
    mkdir -p "$CACHE"
    take_turn set-up

    # A virtual environment holds absolute paths, so a checkout that was moved or copied gets a new one. So does one for which
    # PYTHON names another Python.
    if ! is_current "$VENV/.made-for" "$ROOT" || ! "$python" -c '' 2>/dev/null ||
        [[ -n "${PYTHON:-}" && "$(identity "$PYTHON")" != "$(identity "$python")" ]]; then
        local base
        base=$(find_python)
        say "making .venv with $("$base" --version)"
        "$base" -m venv --clear "$VENV"
        printf '%s' "$ROOT" >"$VENV/.made-for"
    fi

    locked=$(digest "$ROOT/$lock")
    if ! is_current "$VENV/.installed-${lock##*/}" "$locked"; then
        say "installing $lock into .venv"
        "$python" -m pip install --quiet --disable-pip-version-check --no-input \
            --require-hashes --only-binary :all: -r "$ROOT/$lock" ||
            fail "could not install $lock; pip's reason is above." \
                "Chronos is tried with Python 3.11, 3.12 and 3.13 (this is $("$python" --version))."
        printf '%s' "$locked" >"$VENV/.installed-${lock##*/}"
    fi

    project=$(digest "$ROOT/pyproject.toml")
    if ! is_current "$VENV/.installed-project" "$project"; then
        # The build backend is in the lock: nothing is fetched here.
        "$python" -m pip install --quiet --disable-pip-version-check --no-input \
            --no-index --no-deps --no-build-isolation --editable "$ROOT"
        printf '%s' "$project" >"$VENV/.installed-project"
    fi

    end_turn
}

# ------------------------------------------------------------------------------------- Style, types

check_style() {
    "$VENV/bin/ruff" check || fail "the style check failed; ./scripts/check --fix repairs most findings"
    "$VENV/bin/ruff" format --check --quiet || fail "some files are not formatted; repair: ./scripts/check --fix"
}

# check_types [PATH]...: without a path everything that pyproject.toml names.
check_types() { "$VENV/bin/mypy" "$@" || fail "the type check failed"; }

# ---------------------------------------------------------------------- Java, Maven, Kafka, ZooKeeper

need_java() {
    local java=${JAVA_HOME:+$JAVA_HOME/bin/}java version
    version=$("$java" -version 2>&1 </dev/null) ||
        fail "Java is missing: the tests on a real Kafka broker need Java 17 or newer." \
            "Install it (Debian, Ubuntu: apt install openjdk-17-jdk-headless maven; macOS: brew install openjdk@17 maven)." \
            "Without Java: ./scripts/test fast"
    version=$(sed -n 's/.* version "\([0-9]*\).*/\1/p' <<<"$version" | head -n 1)
    [[ "${version:-0}" -ge 17 ]] ||
        fail "Java ${version:-of an unknown version} is too old: the tests on a real Kafka broker need Java 17 or newer." \
            "Install one and set JAVA_HOME to it. Without Java: ./scripts/test fast"
}

need_maven() {
    command -v mvn >/dev/null ||
        fail "Maven is missing: it fetches the Kafka broker and the ZooKeeper that the tests run on." \
            "Install it (Debian, Ubuntu: apt install maven; macOS: brew install maven)." \
            "Without Maven: ./scripts/test fast"
}

# set_up_kafka [VERSION]: .cache/kafka-<version> with what scripts/kafka/pom.xml names. The jars of another version than the one in
# there are not checked: the lock has the hashes of that one only.
set_up_kafka() {
    if [[ $# -eq 0 || "$1" == "$(jars_version kafka)" ]]; then
        set_up_jars Kafka kafka
    else
        fetch_jars "Kafka $1" kafka "$CACHE/kafka-$1" "-Dkafka.version=$1"
    fi
}

# set_up_zookeeper: .cache/zookeeper-<version> with what scripts/zookeeper/pom.xml names.
set_up_zookeeper() { set_up_jars ZooKeeper zookeeper; }

# set_up_helm: .cache/helm-<version> with what scripts/helm/pom.xml names.
set_up_helm() { set_up_jars Helm helm; }

# set_up_rocketmq: .cache/rocketmq-<version> with what scripts/rocketmq/pom.xml names.
set_up_rocketmq() { set_up_jars RocketMQ rocketmq; }

# set_up_generators: .cache/generators-<version> with what scripts/generators/pom.xml names.
set_up_generators() { set_up_jars openapi-generator generators; }

# set_up_spark: PySpark in .venv, and its Kafka connector and Delta Lake in .cache/spark-<version>.
set_up_spark() {
    local lock=locks/requirements-spark.txt locked
    set_up_jars "Spark's jars" spark
    locked=$(digest "$ROOT/$lock")
    if is_current "$VENV/.installed-${lock##*/}" "$locked"; then return; fi
    take_turn set-up
    if ! is_current "$VENV/.installed-${lock##*/}" "$locked"; then
        say "installing $lock into .venv (some 400 MB: it takes a while)"
        pip_spark install || fail "could not install $lock; pip's reason is above."
        printf '%s' "$locked" >"$VENV/.installed-${lock##*/}"
    fi
    end_turn
}

# build_spark: what set_up_spark installs, fetched and built into pip's cache; .venv stays as it is.
build_spark() {
    local lock=locks/requirements-spark.txt wheels status=0
    set_up_jars "Spark's jars" spark
    if is_current "$VENV/.installed-${lock##*/}" "$(digest "$ROOT/$lock")"; then return; fi
    wheels=$(mktemp -d)
    pip_spark wheel --no-deps --wheel-dir "$wheels" || status=$?
    rm -rf "$wheels"
    return "$status"
}

# pip_spark COMMAND...: PySpark is published as source only; what it is built with is in the lock of the tests. pip keeps the wheel
# that it has built, with the hash of its source, in the user's cache.
pip_spark() {
    "$VENV/bin/python" -m pip "$@" --quiet --disable-pip-version-check --no-input --require-hashes \
        --only-binary :all: --no-binary pyspark --no-build-isolation -r "$ROOT/locks/requirements-spark.txt"
}

# jar_hashes DIRECTORY: the SHA-256 and the name of every jar in it, as `sha256sum` writes them.
jar_hashes() {
    local sum=(shasum -a 256)
    if command -v sha256sum >/dev/null; then sum=(sha256sum); fi
    (cd "$1" && LC_ALL=C && export LC_ALL && "${sum[@]}" -- *.jar)
}

# check_jars DIRECTORY NAME: the jars in it are those of locks/NAME-jars.sha256, all of them and no other.
check_jars() {
    local found
    found=$(jar_hashes "$1")
    [[ "$found" == "$(<"$ROOT/locks/$2-jars.sha256")" ]] ||
        fail "the jars in $1 are not those of locks/$2-jars.sha256." \
            "$(diff "$ROOT/locks/$2-jars.sha256" - <<<"$found" | grep -m 1 '^[<>]' || true)" \
            "If scripts/$2/pom.xml names others now: ./scripts/lock jars. Else somebody has changed them: remove the directory."
}

# set_up_jars TITLE NAME: .cache/NAME-<version> with what scripts/NAME/pom.xml names, checked against locks/NAME-jars.sha256.
set_up_jars() {
    local into
    into=$CACHE/$2-$(jars_version "$2")
    fetch_jars "$1" "$2" "$into"
    check_jars "$into" "$2"
}

# jars_version NAME: the version in scripts/NAME/pom.xml.
jars_version() {
    local version
    version=$(sed -n "s:.*<$1\.version>\(.*\)</$1\.version>.*:\1:p" "$ROOT/scripts/$1/pom.xml")
    [[ -n "$version" ]] || fail "scripts/$1/pom.xml names no $1.version."
    printf '%s\n' "$version"
}

# fetch_jars TITLE NAME INTO [OPTION]...: what scripts/NAME/pom.xml names, with these options of Maven, not checked.
fetch_jars() {
    local title=$1 name=$2 into=$3 pom=$ROOT/scripts/$2/pom.xml named
    named=$(digest "$pom")
    shift 3
    need_java
    if is_current "$into/.made-from" "$named"; then return; fi

    need_maven
    mkdir -p "$CACHE"
    # What another script fetched meanwhile stays: something may run from it.
    local partial=$into.partial
    take_turn "$name"
    if ! is_current "$into/.made-from" "$named"; then
        say "fetching $title into ${into#"$ROOT/"}"
        rm -rf "$partial"
        mkdir "$partial"
        mvn -q -B -C -f "$pom" dependency:copy-dependencies -DoutputDirectory="$partial" "$@" </dev/null >&2 ||
            fail "Maven could not fetch $title; its reason is above."
        printf '%s' "$named" >"$partial/.made-from"
        rm -rf "$into"
        mv "$partial" "$into"
    fi
    end_turn
}

# ------------------------------------------------------------------------------------------ Chromium

# set_up_browser: a Chromium for tests/browser, in CHROMIUM, which is exported. It is $CHROMIUM if set, else /usr/bin/chromium,
# else Debian's packages in .cache/chromium-<version>. CHROMIUM=fetch fetches them even if one is installed.
set_up_browser() {
    local wanted=${CHROMIUM-} found
    if [[ -z "$wanted" && -x /usr/bin/chromium ]]; then wanted=/usr/bin/chromium; fi
    if [[ -z "$wanted" || "$wanted" == fetch ]]; then
        found=$(compgen -G "$CACHE/chromium-*/chromium" | head -n 1) || true
        if [[ -z "$found" ]]; then
            fetch_browser
            found=$(compgen -G "$CACHE/chromium-*/chromium" | head -n 1)
        fi
        wanted=$found
    fi
    starts "$wanted" || fail "the browser $wanted does not start, and tests/browser needs it." \
        "Its reason: $("$wanted" --version 2>&1 | tail -n 1)" \
        "Name another: CHROMIUM=<path of a Chromium>. If it is in .cache: remove its directory and run ./scripts/browser/fetch"
    export CHROMIUM=$wanted
}

# starts BROWSER: whether it shows an empty page without a screen.
starts() {
    local profile
    profile=$(mktemp -d)
    local shown=1
    if timeout 60 "$1" --headless --no-sandbox --disable-gpu --no-first-run --user-data-dir="$profile" \
        --dump-dom about:blank 2>/dev/null </dev/null | grep -q '<html>'; then shown=0; fi
    rm -rf "$profile"
    return $shown
}

# fetch_debian INTO PACKAGE...: Debian's packages, and the libraries they need that are not installed, unpacked into INTO/tree.
# It reads the package sources of this machine, keeps the lists in INTO, and installs nothing.
fetch_debian() {
    local into=$1 apt packages attempt package
    shift
    mkdir -p "$into"/state/lists/partial "$into"/cache/archives/partial "$into"/packages "$into"/tree
    apt=(apt-get -qq -o Dir::State="$into/state" -o Dir::Cache="$into/cache" -o Dir::State::status=/var/lib/dpkg/status
        -o Debug::NoLocking=1 -o APT::Sandbox::User="$(id -un)" -o Acquire::Retries=3)
    for attempt in 1 2 3; do
        if "${apt[@]}" update >&2 </dev/null &&
            packages=$("${apt[@]}" --no-install-recommends --reinstall --simulate install "$@" | sed -n 's/^Inst \([^ ]*\).*/\1/p') &&
            [[ -n "$packages" ]] && (cd "$into/packages" && "${apt[@]}" download $packages >&2 </dev/null); then
            rm -rf "$into"/{state,cache}
            for package in "$into"/packages/*.deb; do dpkg-deb -x "$package" "$into/tree" || return 1; done
            return
        fi
        sleep $((attempt * 5))
    done
    rm -rf "$into"
    return 1
}

# fetch_browser: .cache/chromium-<version> with Debian's chromium.
fetch_browser() {
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
        fail "there is no Chromium, and no apt-get to fetch Debian's: tests/browser needs one." \
            "Install a Chromium and name it: CHROMIUM=<path>. Without it: ./scripts/test fast"
    local partial version
    mkdir -p "$CACHE"
    partial=$(mktemp -d "$CACHE/browser-partial.XXXXXX")
    say "fetching Debian's chromium into .cache (some 100 MB)"
    fetch_debian "$partial" chromium chromium-common ||
        fail "could not fetch Debian's package chromium; apt-get's reason is above." \
            "Install a Chromium and name it: CHROMIUM=<path>. Without it: ./scripts/test fast"
    version=$(dpkg-deb -f "$partial"/packages/chromium_*.deb Version)
    # Debian's own start script looks for the program below /usr.
    cat >"$partial/chromium" <<'START'
#!/bin/sh
tree=$(dirname "$(readlink -f "$0")")/tree
for libraries in "$tree"/usr/lib/*-linux-gnu "$tree"/usr/lib/*-linux-gnu/pulseaudio "$tree"/lib/*-linux-gnu "$tree"/usr/lib/chromium; do
    LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
done
export LD_LIBRARY_PATH
exec "$tree/usr/lib/chromium/chromium" "$@"
START
    chmod +x "$partial/chromium"
    rm -rf "$partial/packages"
    starts "$partial/chromium" || fail "Debian's chromium was fetched into $partial, and does not start." \
        "Its reason: $("$partial/chromium" --version 2>&1 | tail -n 1)"
    rm -rf "$CACHE/chromium-$version"
    mv "$partial" "$CACHE/chromium-$version"
}

# ---------------------------------------------------------------------------------------- Prometheus

# set_up_promtool: Prometheus's promtool, in PROMTOOL, which is exported. It is $PROMTOOL if set, else an installed one, else that
# of Debian's package in .cache/promtool-<version>. PROMTOOL=fetch fetches it even if one is installed.
set_up_promtool() {
    local wanted=${PROMTOOL-}
    wanted=${wanted:-$(command -v promtool || true)}
    if [[ -z "$wanted" || "$wanted" == fetch ]]; then
        wanted=$(compgen -G "$CACHE/promtool-*/promtool" | head -n 1) || true
        if [[ -z "$wanted" ]]; then
            fetch_promtool
            wanted=$(compgen -G "$CACHE/promtool-*/promtool" | head -n 1)
        fi
    fi
    "$wanted" --version >/dev/null 2>&1 || fail "the promtool $wanted does not start, and tests/integration/test_promtool.py needs it." \
        "Name another: PROMTOOL=<path>. If it is in .cache: remove its directory and run ./scripts/promtool/fetch"
    export PROMTOOL=$wanted
}

# fetch_promtool: .cache/promtool-<version> with the promtool of Debian's prometheus.
fetch_promtool() {
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
        fail "there is no promtool, and no apt-get to fetch Debian's." "Install Prometheus and name it: PROMTOOL=<path>. Without it: ./scripts/test fast"
    local partial version
    mkdir -p "$CACHE"
    partial=$(mktemp -d "$CACHE/partial-promtool.XXXXXX")
    say "fetching Debian's prometheus into .cache (some 22 MB)"
    fetch_debian "$partial" prometheus || fail "could not fetch Debian's package prometheus; apt-get's reason is above."
    version=$(dpkg-deb -f "$partial"/packages/prometheus_*.deb Version)
    mkdir -p "$CACHE/promtool-$version"
    mv -f "$partial/tree/usr/bin/promtool" "$CACHE/promtool-$version/promtool"
    rm -rf "$partial"
}

# ------------------------------------------------------------------------------------------- Peers

# set_up_peers: beanstalkd and Redis for `bench --peers`, Debian's packages in .cache/peers/tree.
set_up_peers() {
    [[ -d "$CACHE/peers/tree" ]] && return
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
        fail "bench --peers needs apt-get, to fetch Debian's beanstalkd and redis-server."
    local partial
    mkdir -p "$CACHE/peers"
    partial=$(mktemp -d "$CACHE/peers-partial.XXXXXX")
    say "fetching Debian's beanstalkd and redis-server into .cache/peers"
    fetch_debian "$partial" beanstalkd redis-server ||
        fail "could not fetch Debian's packages beanstalkd and redis-server; apt-get's reason is above."
    mv "$partial/tree" "$CACHE/peers/tree"
    rm -rf "$partial"
}
