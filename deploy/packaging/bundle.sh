#!/bin/sh
# Make dist/ckpt-exporter-VERSION-linux-ARCH.tar.gz from a wheel: for nodes that have Python 3.11 or newer but
# no pip and no package index. Unpacked anywhere, bin/ckpt-exporter runs; nothing is written at run time.
#
#   sh deploy/packaging/bundle.sh dist/ckpt_exporter-*.whl
#
# Not a zipapp: psutil and bcrypt are shared libraries, which Python cannot load from a zip file. A zipapp would
# have to unpack them first, into a place that a hardened unit must not have: writable and executable.
# Both libraries use Python's stable interface, so one bundle serves every CPython from 3.11 on; PyYAML falls
# back to its pure form on another version than the one that made the bundle.
set -eu
wheel=$1
python=${PYTHON:-python3}
root=$(cd "$(dirname "$0")/../.." && pwd)
version=$(basename "$wheel" | cut -d- -f2)
name=ckpt-exporter-$version-linux-$(uname -m)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m pip install --quiet --disable-pip-version-check --no-compile --only-binary :all: --require-hashes \
    --target "$work/$name/lib" -r "$root/deploy/docker/requirements.txt"
"$python" -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --no-index \
    --target "$work/unpacked" "$wheel"
mkdir -p "$work/$name/bin"
cp -r "$work/unpacked/ckpt_exporter" "$work/unpacked"/ckpt_exporter-*.dist-info "$work/$name/lib/"
cp -r "$work/unpacked/share" "$work/$name/share"
rm -rf "$work/$name/lib/bin"
cp "$root/deploy/packaging/launcher.sh" "$work/$name/bin/ckpt-exporter"
chmod 755 "$work/$name/bin/ckpt-exporter"
cp "$root/LICENSE" "$root/docs/LICENCES.md" "$root/deploy/sbom.cdx.json" "$work/$name/"

mkdir -p "$root/dist"
# The same input gives the same archive.
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --mode=go-w,a+rX -cf - "$name" |
    gzip -9n >"$root/dist/$name.tar.gz"
echo "dist/$name.tar.gz"
