#!/usr/bin/env python3
"""Packs murmur for people who do not build it: archives with everything that belongs to it, into dist/.

    python3 scripts/package.py                                          # builds for this machine, makes all packages
    python3 scripts/package.py --binary target/release/murmur           # packs one that is there
    python3 scripts/package.py --target x86_64-unknown-linux-gnu.2.28   # for glibc 2.28 and later, built with zig
    python3 scripts/package.py --target aarch64-unknown-linux-musl --tool target/release/murmur

What it makes: a tar.gz (binary, completions, man pages, licences of murmur and of all that is in it, a CycloneDX list of
parts), a .deb, a Python wheel with the binary and the package `murmur` (`pip install`, `uv tool install`), a folder from which podman or
docker builds a container, and SHA256SUMS. It needs Python 3.9 or later and cargo; a target that is not this machine's is
built by cargo-zigbuild with zig from PyPI, in an environment of its own below the target folder. Equal inputs give equal
archives: times are those of the last commit, or SOURCE_DATE_EPOCH.
"""

import argparse
import base64
import gzip
import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ZIG_PACKAGES = ["cargo-zigbuild==0.24.*", "ziglang==0.17.*"]
KINDS = ["tar", "deb", "wheel", "container"]
SHELLS = {"bash": "murmur", "zsh": "_murmur", "fish": "murmur.fish", "powershell": "murmur.ps1"}
SUMMARY = "A peer-to-peer training daemon: one binary, no coordinator"

# Debian's name, and the wheel's, of each processor.
PROCESSORS = {"x86_64": ("amd64", "x86_64"), "aarch64": ("arm64", "aarch64")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", help="a Rust target, with .GLIBC behind one of glibc [default: this machine's]")
    parser.add_argument("--binary", type=Path, help="pack this one instead of building")
    parser.add_argument("--tool", type=Path, help="a murmur that starts here and writes completions and man pages")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    parser.add_argument("--only", choices=KINDS, action="append", help="make only this; may be repeated")
    options = parser.parse_args()
    target = options.target or f"{platform.machine()}-unknown-linux-gnu"
    if target.split("-")[0] not in PROCESSORS or "-linux-" not in target:
        sys.exit(f"package.py: packages are for Linux on {' or '.join(PROCESSORS)}, not {target}")
    binary = options.binary.resolve() if options.binary else build(options.target)
    tool = (options.tool or binary).resolve()
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        parts = Parts(binary, tool, target, Path(scratch))
        makers = {"tar": make_tar, "deb": make_deb, "wheel": make_wheel, "container": make_container}
        made = [makers[kind](parts, options.output) for kind in KINDS if kind in (options.only or KINDS)]
    files = [path for path in made if path.is_file()]
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (options.output / "SHA256SUMS").write_text("".join(sums))
    for path in made:
        print(path)


class Parts:
    """What goes into packages: paths within a file system below /usr, with content and mode."""

    def __init__(self, binary, tool, target, scratch):
        self.binary, self.target = binary, target
        self.processor = target.split("-")[0]
        self.version = re.search(r'^version = "(.+)"', (ROOT / "Cargo.toml").read_text(), re.M).group(1)
        self.time = commit_time()
        self.parts_list, self.third_party = parts_of(self.version, self.time)
        self.completions, self.manual = {}, {}
        for shell, name in SHELLS.items():
            self.completions[name] = run([tool, "completions", shell])
        run([tool, "man", scratch / "man"])
        for page in sorted((scratch / "man").iterdir()):
            self.manual[page.name] = page.read_bytes()

    def documents(self):
        """Name to content: what a user may want to read."""
        names = ["LICENSE-MIT", "LICENSE-APACHE", "README.md", "GUIDE.md", "CHANGELOG.md"]
        documents = {name: (ROOT / name).read_bytes() for name in names if (ROOT / name).exists()}
        documents["THIRD-PARTY-LICENSES.txt"] = self.third_party
        documents["murmur.cdx.json"] = self.parts_list
        return documents


# ---- The binary ----


def build(target):
    if target is None:
        run(["cargo", "build", "--release", "--locked", "-p", "murmur"], show=True)
        return target_folder() / "release" / "murmur"
    environment = zig_environment()
    triple = re.sub(r"\.\d+\.\d+$", "", target)
    run(["rustup", "target", "add", triple], show=True)
    command = ["cargo", "zigbuild", "--release", "--locked", "-p", "murmur", "--target", target]
    run(command, show=True, environment=environment)
    return target_folder() / triple / "release" / "murmur"


def target_folder():
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


def zig_environment():
    """cargo-zigbuild and zig in a Python environment of their own; where they are missing, they come from PyPI."""
    folder = target_folder() / "zig"
    if not (folder / "complete").exists():
        try:
            venv.create(folder, with_pip=True, clear=True)
        except (ImportError, subprocess.CalledProcessError):
            sys.exit("package.py: this Python cannot make an environment with pip: Debian and Ubuntu have that in python3-venv")
        run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", *ZIG_PACKAGES], show=True)
        (folder / "complete").touch()
    return {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "VIRTUAL_ENV": str(folder)}


# ---- What is in it ----


def parts_of(version, made_at):
    """All crates in the binary: as CycloneDX 1.5, and their licences' texts."""
    metadata = json.loads(run(["cargo", "metadata", "--format-version", "1", "--locked", "--offline"], or_else=b"null"))
    metadata = metadata or json.loads(run(["cargo", "metadata", "--format-version", "1", "--locked"]))
    packages = {package["id"]: package for package in metadata["packages"]}
    graph = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    root = next(id for id, package in packages.items() if package["name"] == "murmur")
    # Only what is linked: no tests' dependencies, and those of this kind of system.
    linked, open_ends = set(), [root]
    while open_ends:
        id = open_ends.pop()
        if id in linked:
            continue
        linked.add(id)
        for dependency in graph[id]["deps"]:
            if any(kind["kind"] is None and is_linux(kind["target"]) for kind in dependency["dep_kinds"]):
                open_ends.append(dependency["pkg"])
    checksums = checksums_of_lock()
    components, texts = [], []
    for package in sorted((packages[id] for id in linked), key=lambda package: (package["name"], package["version"])):
        name, number = package["name"], package["version"]
        if package["source"] is None:
            continue
        component = {
            "type": "library",
            "name": name,
            "version": number,
            "purl": f"pkg:cargo/{name}@{number}",
            "bom-ref": f"{name}@{number}",
            "licenses": [{"expression": (package["license"] or "NOASSERTION").replace("/", " OR ")}],
        }
        if (name, number) in checksums:
            component["hashes"] = [{"alg": "SHA-256", "content": checksums[name, number]}]
        components.append(component)
        texts.append(licence_texts(package))
    moment = subprocess.run(
        ["date", "-u", "-d", f"@{made_at}", "+%Y-%m-%dT%H:%M:%SZ"], capture_output=True, text=True, check=True
    )
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": moment.stdout.strip(),
            "component": {"type": "application", "name": "murmur", "version": version, "bom-ref": "murmur"},
        },
        "components": components,
    }
    return (json.dumps(document, indent=1) + "\n").encode(), "".join(texts).encode()


def is_linux(condition):
    return condition is None or not re.search(r"windows|macos|ios|wasm|android|apple", condition) or "not(" in condition


def checksums_of_lock():
    blocks = (ROOT / "Cargo.lock").read_text().split("[[package]]")
    found = (re.findall(r'^(name|version|checksum) = "(.+)"', block, re.M) for block in blocks)
    tables = [dict(pairs) for pairs in found]
    return {(table["name"], table["version"]): table["checksum"] for table in tables if "checksum" in table}


def licence_texts(package):
    folder = Path(package["manifest_path"]).parent
    heading = f"{package['name']} {package['version']} ({package['license'] or 'see below'})"
    text = f"{heading}\n{'=' * len(heading)}\n\n"
    for path in sorted(folder.iterdir()):
        if re.match(r"(?i)(licen[cs]e|copying|notice|unlicense)", path.name) and path.is_file():
            text += path.read_text(errors="replace").strip() + "\n\n"
    return text + "\n"


# ---- Packages ----


def make_tar(parts, output):
    name = f"murmur-{parts.version}-{parts.target}"
    files = {f"{name}/murmur": (parts.binary.read_bytes(), 0o755)}
    for file, content in parts.completions.items():
        files[f"{name}/completions/{file}"] = (content, 0o644)
    for file, content in parts.manual.items():
        files[f"{name}/man/man1/{file}"] = (content, 0o644)
    for file, content in parts.documents().items():
        files[f"{name}/{file}"] = (content, 0o644)
    path = output / f"{name}.tar.gz"
    path.write_bytes(tar_gz(files, parts.time))
    return path


def make_deb(parts, output):
    """By hand, because a .deb is three files in an archive: so it needs no Debian to be made."""
    architecture = PROCESSORS[parts.processor][0]
    files = {"./usr/bin/murmur": (parts.binary.read_bytes(), 0o755)}
    places = {"murmur": "bash-completion/completions", "_murmur": "zsh/vendor-completions"}
    places["murmur.fish"] = "fish/vendor_completions.d"
    for name, place in places.items():
        files[f"./usr/share/{place}/{name}"] = (parts.completions[name], 0o644)
    for name, content in parts.manual.items():
        files[f"./usr/share/man/man1/{name}.gz"] = (gzip.compress(content, mtime=0), 0o644)
    for name, content in parts.documents().items():
        files[f"./usr/share/doc/murmur/{name}"] = (content, 0o644)
    # Debian wants the licence under this name.
    copyright = (ROOT / "LICENSE-MIT").read_bytes() + b"\n----\n\n" + (ROOT / "LICENSE-APACHE").read_bytes()
    files["./usr/share/doc/murmur/copyright"] = (copyright, 0o644)
    kilobytes = sum(len(content) for content, _ in files.values()) // 1024
    glibc = re.search(r"gnu\.(\d+\.\d+)$", parts.target)
    depends = "" if "musl" in parts.target else f"Depends: libc6 (>= {glibc.group(1) if glibc else own_glibc()})\n"
    control = (
        f"Package: murmur\nVersion: {parts.version}\nArchitecture: {architecture}\n{depends}"
        f"Maintainer: the Murmuration developers <murmur@invalid>\nInstalled-Size: {kilobytes}\nSection: science\n"
        f"Priority: optional\nDescription: {SUMMARY}\n"
        " Several machines train one model together: each trains locally, gossips its\n"
        " model's changes and averages with random partners.\n"
    ).encode()
    sums = "".join(f"{hashlib.md5(content).hexdigest()}  {name[2:]}\n" for name, (content, _) in sorted(files.items()))
    about = {"./control": (control, 0o644), "./md5sums": (sums.encode(), 0o644)}
    members = [
        ("debian-binary", b"2.0\n"),
        ("control.tar.gz", tar_gz(about, parts.time, with_folders=True)),
        ("data.tar.gz", tar_gz(files, parts.time, with_folders=True)),
    ]
    path = output / f"murmur_{parts.version}_{architecture}.deb"
    with path.open("wb") as deb:
        deb.write(b"!<arch>\n")
        for name, content in members:
            deb.write(f"{name:<16}{parts.time:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode())
            deb.write(content + b"\n" * (len(content) % 2))
    return path


def make_wheel(parts, output):
    """The binary as a script of the wheel, which pip puts beside python, as it does with ruff and uv; and the package that
    speaks with daemons."""
    processor = PROCESSORS[parts.processor][1]
    glibc = re.search(r"gnu\.(\d+)\.(\d+)$", parts.target)
    if "musl" in parts.target:
        # Static, so it starts with glibc as well.
        system = f"manylinux_2_17_{processor}.musllinux_1_1_{processor}"
    else:
        first, second = glibc.groups() if glibc else own_glibc().split(".")
        system = f"manylinux_{first}_{second}_{processor}"
    name = f"murmuration-{parts.version}"
    about = (
        f"Metadata-Version: 2.1\nName: murmuration\nVersion: {parts.version}\nSummary: {SUMMARY}\n"
        "License: MIT OR Apache-2.0\nRequires-Python: >=3.9\nDescription-Content-Type: text/markdown\n\n"
    ).encode() + (ROOT / "README.md").read_bytes()
    tags = "".join(f"Tag: py3-none-{one}\n" for one in system.split("."))
    files = {
        f"{name}.data/scripts/murmur": (parts.binary.read_bytes(), 0o755),
        f"{name}.dist-info/METADATA": (about, 0o644),
        f"{name}.dist-info/WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: package.py\nRoot-Is-Purelib: false\n{tags}".encode(), 0o644),
        f"{name}.dist-info/licenses/LICENSE-MIT": ((ROOT / "LICENSE-MIT").read_bytes(), 0o644),
        f"{name}.dist-info/licenses/LICENSE-APACHE": ((ROOT / "LICENSE-APACHE").read_bytes(), 0o644),
        f"{name}.dist-info/licenses/THIRD-PARTY-LICENSES.txt": (parts.third_party, 0o644),
        f"{name}.dist-info/sboms/murmur.cdx.json": (parts.parts_list, 0o644),
    }
    package = ROOT / "python" / "murmur"
    for source in sorted([*package.glob("*.py"), package / "py.typed"]):
        files[f"murmur/{source.name}"] = (source.read_bytes(), 0o644)
    record = "".join(
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b'=').decode()},{len(content)}\n"
        for path, (content, _) in files.items()
    )
    files[f"{name}.dist-info/RECORD"] = (f"{record}{name}.dist-info/RECORD,,\n".encode(), 0o644)
    path = output / f"{name}-py3-none-{system}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for file, (content, mode) in files.items():
            entry = zipfile.ZipInfo(file, (1980, 1, 1, 0, 0, 0))
            entry.external_attr, entry.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
            wheel.writestr(entry, content)
    return path


def make_container(parts, output):
    """A folder for `podman build`. A static binary needs nothing else in its container."""
    folder = output / f"container-{parts.target}"
    folder.mkdir(exist_ok=True)
    shutil.copy2(parts.binary, folder / "murmur")
    base = "scratch" if "musl" in parts.target else "debian:stable-slim"
    text = (ROOT / "configs/container/Containerfile").read_text()
    (folder / "Containerfile").write_text(re.sub(r"(?m)^ARG BASE=.*$", f"ARG BASE={base}", text))
    # A volume takes its owner from the folder in the image.
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data" / ".keep").touch()
    for name in ["LICENSE-MIT", "LICENSE-APACHE"]:
        shutil.copy2(ROOT / name, folder / name)
    return folder


def tar_gz(files, time, with_folders=False):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as tar:
        folders = {str(folder) for name in files for folder in Path(name).parents} - {"."} if with_folders else set()
        entries = [("./" + folder if name_is_dotted(files) else folder, None, 0o755) for folder in folders]
        entries += [(name, content, mode) for name, (content, mode) in files.items()]
        for name, content, mode in sorted(entries, key=lambda entry: entry[0]):
            entry = tarfile.TarInfo(name)
            entry.mode, entry.mtime, entry.uname, entry.gname = mode, time, "root", "root"
            if content is None:
                entry.type = tarfile.DIRTYPE
                tar.addfile(entry)
            else:
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    return gzip.compress(raw.getvalue(), mtime=time)


def name_is_dotted(files):
    return all(name.startswith("./") for name in files)


# ---- This machine ----


def commit_time():
    if "SOURCE_DATE_EPOCH" in os.environ:
        return int(os.environ["SOURCE_DATE_EPOCH"])
    return int(run(["git", "log", "-1", "--format=%ct"], or_else=b"0"))


def own_glibc():
    return platform.libc_ver()[1] or "2.36"


def run(command, show=False, environment=None, or_else=None):
    """What a command prints; ends this script where it fails, unless there is something else to go on with."""
    output = None if show else subprocess.PIPE
    words = [str(word) for word in command]
    try:
        ended = subprocess.run(words, cwd=ROOT, stdout=output, stderr=output, env=environment)
    except OSError as error:
        if or_else is not None:
            return or_else
        sys.exit(f"package.py: cannot start {words[0]}: {error.strerror}")
    if ended.returncode != 0 and or_else is not None:
        return or_else
    if ended.returncode != 0:
        sys.exit(f"package.py: {' '.join(words)} failed: {(ended.stderr or b'').decode(errors='replace').strip()}")
    return ended.stdout


if __name__ == "__main__":
    main()
