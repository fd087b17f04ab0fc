#!/bin/sh
# Slurm prolog: have ckpt-exporter watch the checkpoint directory of a job while it runs on this node.
#
#   sbatch --comment="ckpt=/scratch/me/run7 ckpt_name=llama" ...
#
# Without ckpt= the site's CKPT_PATH is taken. The `dir` label is ckpt_name, else the account: what a project
# calls its work, never a job id, which would make new series for every job. A second job on this node that
# has the name but another directory gets it with -2 and so on, so there are never more names than jobs at once.
# Jobs, and tasks of an array, that share name and directory are one: watched until the last of them has ended.
#
# A prolog that fails drains its node. This one ends with 0 whatever happens and tells the system log.
set -uf
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
umask 022

tell() {
    logger -t ckpt-exporter-prolog -- "job ${SLURM_JOB_ID:-?}: $*" 2>/dev/null
    echo "ckpt-exporter-prolog: job ${SLURM_JOB_ID:-?}: $*" >&2
}

give_up() {
    tell "$*"
    exit 0
}

# A subshell, because a mistake in the site's file or a full disk ends the shell that meets it.
(
CKPT_FRAGMENTS=/run/ckpt-exporter.d CKPT_ROOTS='' CKPT_PATH='' CKPT_STALE_MINUTES=1440
site=${CKPT_EXPORTER_SLURM_CONF:-/etc/ckpt-exporter/slurm.conf}
[ -r "$site" ] || give_up "no $site: nothing is watched"
# shellcheck source=slurm.conf.example
. "$site"

case ${SLURM_JOB_ID:-} in
'' | *[!0-9]*) give_up "no job id: nothing is watched" ;;
esac

# --- what to watch, and what to call it

path='' name=''
for word in ${SLURM_JOB_COMMENT:-}; do
    case $word in
    ckpt=*) path=${word#ckpt=} ;;
    ckpt_name=*) name=${word#ckpt_name=} ;;
    esac
done
if [ -z "$path" ]; then
    [ -n "$CKPT_PATH" ] || exit 0
    path=$(printf '%s' "$CKPT_PATH" | awk -v u="${SLURM_JOB_USER:-}" -v a="${SLURM_JOB_ACCOUNT:-}" -v j="$SLURM_JOB_ID" '
        { gsub(/%u/, u); gsub(/%a/, a); gsub(/%j/, j); print }')
fi
[ -n "$name" ] || name=${SLURM_JOB_ACCOUNT:-${SLURM_JOB_PARTITION:-slurm}}
name=$(printf '%s' "$name" | tr -c 'A-Za-z0-9._-' '_' | cut -c 1-64)

# The daemon may be allowed to read more than the job's user: nobody has it look where he could not write.
case $path in
*[[:cntrl:]*?[]* | */../* | */.. | *//*) give_up "$path: not a plain absolute path: it is not watched" ;;
esac
allowed=no
for root in $CKPT_ROOTS; do
    case $path in
    "${root%/}"/?*) allowed=yes ;;
    esac
done
[ $allowed = yes ] || give_up "$path: not below one of CKPT_ROOTS: it is not watched"

nearest=$path
until timeout 5 test -e "$nearest" || [ "$nearest" = / ]; do
    nearest=$(dirname "$nearest")
done
timeout 5 runuser -u "${SLURM_JOB_USER:-nobody}" -- test -w "$nearest" ||
    give_up "$path: $nearest is not writable for ${SLURM_JOB_USER:-nobody}: it is not watched"

quoted_path=$(printf '%s' "$path" | sed "s/'/''/g")

# --- the fragment

mkdir -p "$CKPT_FRAGMENTS" 2>/dev/null || give_up "$CKPT_FRAGMENTS cannot be made: nothing is watched"
# Prologs of jobs that start together take turns, so that two do not pick one name for two directories.
exec 9>"$CKPT_FRAGMENTS/.lock"
flock -w 5 9 || tell "no lock: going on without"

# An epilog that was killed leaves its fragment behind.
set +f
for file in "$CKPT_FRAGMENTS"/job-*.yml; do
    id=${file##*/job-}
    id=${id%.yml}
    case $id in
    "$SLURM_JOB_ID" | '' | *[!0-9]*) continue ;;
    esac
    if [ -n "$(find "$file" -mmin "+$CKPT_STALE_MINUTES" 2>/dev/null)" ] &&
        ! pgrep -f "^slurmstepd: \[$id\." >/dev/null; then
        rm -f "$file" && tell "removed the fragment of job $id, which has no process here"
    fi
done

# Succeed if another job's fragment has this name for another directory.
is_taken() {
    for file in "$CKPT_FRAGMENTS"/job-*.yml; do
        [ "$file" != "$CKPT_FRAGMENTS/job-$SLURM_JOB_ID.yml" ] || continue
        grep -qxF "  - name: '$1'" "$file" 2>/dev/null || continue
        grep -qxF "    path: '$quoted_path'" "$file" || return 0
    done
    return 1
}

free=$name number=2
while is_taken "$free"; do
    [ $number -le 99 ] || give_up "$name: is taken by 99 other jobs: nothing is watched"
    free=$name-$number number=$((number + 1))
done

fragment=$CKPT_FRAGMENTS/job-$SLURM_JOB_ID.yml
prepared=$CKPT_FRAGMENTS/.job-$SLURM_JOB_ID.yml
# Written aside and renamed: the daemon sees all of it or nothing.
if ! printf "directories:\n  - name: '%s'\n    path: '%s'\n" "$free" "$quoted_path" >"$prepared" ||
    ! mv -f "$prepared" "$fragment"; then
    give_up "$fragment cannot be written: nothing is watched"
fi
)
exit 0
