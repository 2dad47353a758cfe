#!/bin/sh
# Prints the SHA-256 of one file: a handler for weir work.
#
#   find photos -type f | weir enqueue --queue files --kind sha256 --lines
#   weir work --queue files --concurrency 8 -- ./examples/sha256.sh
#
# The job's args are {"line": "the file's name"}. Weir passes them as JSON on standard input, and each plain field
# in the environment too, so that this script need not parse JSON and any name is safe.
set -eu
file=${WEIR_ARG_line:?is not set: enqueue the jobs with --lines}

if [ ! -e "$file" ]; then
	echo "$file does not exist" >&2
	exit 65 # retrying won't help
fi
if command -v sha256sum >/dev/null; then
	sum=$(sha256sum <"$file")
else
	sum=$(shasum -a 256 <"$file")
fi
printf '%s  %s\n' "${sum%% *}" "$file"
