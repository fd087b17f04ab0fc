#!/bin/sh
# Slurm epilog: the job has ended, ckpt-exporter need not watch its checkpoint directory any more.
#
# The daemon goes on watching for include.keep_seconds, so that the last save ends and is scraped.
# An epilog that fails drains its node: this one ends with 0 whatever happens.
set -u
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH

# A subshell, because a mistake in the site's file ends the shell that meets it.
(
CKPT_FRAGMENTS=/run/ckpt-exporter.d
site=${CKPT_EXPORTER_SLURM_CONF:-/etc/ckpt-exporter/slurm.conf}
# shellcheck source=slurm.conf.example
[ ! -r "$site" ] || . "$site"

case ${SLURM_JOB_ID:-} in
'' | *[!0-9]*) exit 0 ;;
esac
rm -f "$CKPT_FRAGMENTS/job-$SLURM_JOB_ID.yml" "$CKPT_FRAGMENTS/.job-$SLURM_JOB_ID.yml" ||
    logger -t ckpt-exporter-epilog -- "job $SLURM_JOB_ID: its fragment cannot be removed" 2>/dev/null
)
exit 0
