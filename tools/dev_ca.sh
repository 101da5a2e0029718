#!/bin/bash
# dev_ca.sh DIR NAME=SAN...: a throw-away authority and certificates for trials.
#   tools/dev_ca.sh certs server=IP:127.0.0.1 me=DNS:me.example host=DNS:host
# makes certs/ca.pem and certs/NAME.{pem,key}, good for 30 days, or for
# CADRE_CA_DAYS (-1: over already). An authority that is there already is used
# again. Not for production: its key lies beside.
set -euo pipefail
if [[ $# -lt 2 ]]; then
  sed -n '2,6s/^# //p' "$0" >&2
  exit 2
fi
dir=$1
days=${CADRE_CA_DAYS:-30}
shift
mkdir -p "$dir"
cd "$dir"
umask 077
new_key=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
if [[ ! -f ca.pem ]]; then
  openssl req -x509 "${new_key[@]}" -days 30 -subj "/CN=cadre trial authority" \
    -keyout ca.key -out ca.pem 2>/dev/null
fi
for pair in "$@"; do
  name=${pair%%=*}
  san=${pair#*=}
  openssl req "${new_key[@]}" -subj "/CN=$name" -keyout "$name.key" \
    -out "$name.csr" 2>/dev/null
  openssl x509 -req -in "$name.csr" -CA ca.pem -CAkey ca.key -CAcreateserial \
    -days "$days" -extfile <(echo "subjectAltName=$san") -out "$name.pem" 2>/dev/null
  rm "$name.csr"
done
ls
