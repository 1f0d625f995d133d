#!/bin/sh
# Certificates for a Ray cluster whose hosts encrypt what they say to each other:
#
#   deploy/tls.sh FOLDER ADDRESS...      an authority of its own, and a key and certificate for each host's address
#
# Copy ca.crt and a host's own ADDRESS.key and ADDRESS.crt to that host (never ca.key), and before ray start set
#
#   RAY_USE_TLS=1 RAY_TLS_CA_CERT=ca.crt RAY_TLS_SERVER_KEY=ADDRESS.key RAY_TLS_SERVER_CERT=ADDRESS.crt
#
# with whole paths; likewise where a run is started. DAYS says how long certificates are good for (default 90).
set -eu

[ $# -ge 2 ] || { echo "usage: $0 FOLDER ADDRESS..." >&2; exit 2; }
folder=$1
shift
umask 077
mkdir -p "$folder"
cd "$folder"
days=${DAYS:-90}
[ -f ca.key ] || openssl req -x509 -newkey rsa:3072 -nodes -days "$days" -subj "/CN=fedactors cluster" \
    -addext "keyUsage=critical,keyCertSign,cRLSign" -keyout ca.key -out ca.crt 2> /dev/null
for address in "$@"; do
    case $address in
        *[!0-9.]*) name="DNS:$address" ;;
        *) name="IP:$address" ;;
    esac
    openssl req -newkey rsa:3072 -nodes -subj "/CN=$address" -keyout "$address.key" -out "$address.csr" 2> /dev/null
    printf 'subjectAltName=%s,DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n' "$name" > "$address.ext"
    openssl x509 -req -in "$address.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days "$days" \
        -extfile "$address.ext" -out "$address.crt" 2> /dev/null
    rm "$address.csr" "$address.ext"
done
echo "$folder: ca.crt, and .key and .crt of $*"
