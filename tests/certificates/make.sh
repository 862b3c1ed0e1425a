#!/usr/bin/env bash
# make.sh: writes the certificates of the tests again. All but the expired ones are valid until 2120; keys are on P-256.
set -euo pipefail

cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# authority NAME: a certificate that signs others.
authority() {
	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$work/$1.key" -out "$1.pem" \
		-subj "/CN=$1 of the tests" -days 34000 -addext 'keyUsage=critical,keyCertSign'
}

# request NAME CN KEY
request() {
	openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$3" -out "$work/$1.csr" -subj "/CN=$2"
}

# issue CSR PEM START END EXTENSIONS ARGUMENT...
issue() {
	cat >"$work/ca.cnf" <<-EOF
		[ca]
		database = $work/index
		policy = any
		rand_serial = yes
		unique_subject = no
		x509_extensions = extensions
		[any]
		commonName = supplied
		[extensions]
		$5
	EOF
	openssl ca -batch -notext -config "$work/ca.cnf" -name ca -md sha256 -in "$work/$1.csr" -out "$2" -outdir "$work" \
		-startdate "$3" -enddate "$4" "${@:6}"
}

# signed AUTHORITY NAME USAGE SANS START END
signed() {
	request "$2" "$2" "$2.key"
	issue "$2" "$2.pem" "$5" "$6" "$(printf 'basicConstraints = critical,CA:FALSE\nextendedKeyUsage = %s\nsubjectAltName = %s' "$3" "$4")" \
		-cert "$1.pem" -keyfile "$work/$1.key"
}

touch "$work/index"
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

# An authority that has ended, the same key and name for longer, and a client of both.
request expired-authority 'expired-authority of the tests' "$work/expired-authority.key"
for authority in expired-authority:20210101000000Z prolonged-authority:21200101000000Z; do
	issue expired-authority "${authority%:*}.pem" 20200101000000Z "${authority#*:}" \
		"$(printf 'basicConstraints = critical,CA:TRUE\nkeyUsage = critical,keyCertSign')" \
		-selfsign -keyfile "$work/expired-authority.key"
done
signed expired-authority outlived clientAuth DNS:prometheus 20200101000000Z 21200101000000Z
