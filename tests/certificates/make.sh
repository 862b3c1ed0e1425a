#!/usr/bin/env bash
# make.sh: writes the certificates of the tests again. All but `expired` are valid until 2120; keys are on P-256.
set -euo pipefail

cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# authority NAME: a certificate that signs others.
authority() {
	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$work/$1.key" -out "$1.pem" \
		-subj "/CN=$1 of the tests" -days 34000 -addext 'keyUsage=critical,keyCertSign'
	touch "$work/$1.index"
}

# signed AUTHORITY NAME USAGE SANS START END
signed() {
	openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$2.key" -out "$work/$2.csr" -subj "/CN=$2"
	cat >"$work/ca.cnf" <<-EOF
		[ca]
		database = $work/$1.index
		policy = any
		rand_serial = yes
		unique_subject = no
		x509_extensions = extensions
		[any]
		commonName = supplied
		[extensions]
		basicConstraints = critical,CA:FALSE
		extendedKeyUsage = $3
		subjectAltName = $4
	EOF
	openssl ca -batch -notext -config "$work/ca.cnf" -name ca -md sha256 -cert "$1.pem" -keyfile "$work/$1.key" \
		-in "$work/$2.csr" -out "$2.pem" -outdir "$work" -startdate "$5" -enddate "$6"
}

authority authority
authority stranger-authority
host=DNS:localhost,IP:127.0.0.1
signed authority server serverAuth "$host" 20200101000000Z 21200101000000Z
signed authority renewed serverAuth "$host" 20200101000000Z 21210101000000Z
signed authority expired serverAuth "$host" 20200101000000Z 20210101000000Z
signed authority client clientAuth DNS:prometheus,IP:10.0.0.3,URI:spiffe://tests/prometheus,email:sre@example.net \
	20200101000000Z 21200101000000Z
signed authority expired-client clientAuth DNS:prometheus 20200101000000Z 20210101000000Z
signed stranger-authority stranger clientAuth DNS:prometheus 20200101000000Z 21200101000000Z
