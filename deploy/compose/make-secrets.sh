#!/bin/sh
# Make the secrets of deploy/compose.yaml, unless they exist: an authority, a certificate for all
# services, and the token of the HTTP API. The private key of the authority is thrown away.
#
#   make-secrets.sh DIRECTORY_OF_QUIRE DIRECTORY_OF_PROMETHEUS
#
# To make new ones, stop the services and delete both volumes.
set -eu
quire="$1"
prometheus="$2"
names="DNS:bookie-1,DNS:bookie-2,DNS:bookie-3,DNS:autorecovery,DNS:dashboard,DNS:localhost,IP:127.0.0.1"
days=825

if [ -f "$prometheus/ca.pem" ]; then
  echo "the secrets exist"
  exit 0
fi
umask 077
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

cat >"$work/authority.cnf" <<END
[req]
distinguished_name = name
x509_extensions = extensions
prompt = no
[name]
CN = Authority of the Quire cluster in Docker Compose
[extensions]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
END
cat >"$work/service.cnf" <<END
[req]
distinguished_name = name
prompt = no
[name]
CN = Quire
[extensions]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = $names
END

openssl ecparam -name prime256v1 -genkey -noout -out "$work/authority.key"
openssl req -x509 -new -config "$work/authority.cnf" -key "$work/authority.key" -days "$days" \
  -out "$work/ca.pem"
openssl ecparam -name prime256v1 -genkey -noout -out "$work/key.pem"
openssl req -new -config "$work/service.cnf" -key "$work/key.pem" -out "$work/request.pem"
openssl x509 -req -in "$work/request.pem" -CA "$work/ca.pem" -CAkey "$work/authority.key" \
  -CAcreateserial -days "$days" -extfile "$work/service.cnf" -extensions extensions \
  -out "$work/cert.pem"
openssl rand -hex 32 >"$work/token"

# Each directory belongs to the account of its service: Quire refuses secrets that others can read.
hand_over() {
  directory="$1"
  owner="$2"
  shift 2
  for name in "$@"; do
    cp "$work/$name" "$directory/$name"
    chmod 0400 "$directory/$name"
    if [ "$(id -u)" = 0 ]; then chown "$owner" "$directory/$name"; fi
  done
}
hand_over "$quire" 10001:10001 key.pem cert.pem ca.pem token
hand_over "$prometheus" 65534:65534 token ca.pem
echo "the secrets are made"
