#!/usr/bin/env bash
# access.sh PROGRAM TOOLKIT: every web configuration of the Prometheus exporter-toolkit, as it comes: which are accepted, and
# what curl gets where one is served. Prints a line each; fails at the first that is not as expected.
set -euo pipefail

program=$(realpath "$1")
work=$(mktemp -d)
daemon=
stop() {
	[ -z "$daemon" ] || { kill "$daemon" && wait "$daemon"; } 2>/dev/null || true
	daemon=
}
trap 'stop; rm -rf "$work"' EXIT
cp -r "$2"/web/testdata "$work/examples"
cp "$2"/docs/web-config.yml "$work/examples/docs.yml"
cp "$2"/web/web-config.yml "$work/examples/minimal.yml"
cd "$work/examples"

export GPU_NODE_EXPORTER__HTTP__LISTEN=127.0.0.1:0 GPU_NODE_EXPORTER__STATE__DIR=$work/state
export GPU_NODE_EXPORTER__CONTROL__SOCKET=$work/control.sock GPU_NODE_EXPORTER__HOST__ROOT=$work/root
export GPU_NODE_EXPORTER__SAMPLER__NVML_LIBRARY=$work/none GPU_NODE_EXPORTER__TOPOLOGY__ENABLED=false

# Examples whose names do not say what becomes of them here, each with the reason.
expected() {
	case $1 in
	web_config_noAuth_noHTTP2Cipher.bad.yml) echo accepted ;; # Bad for HTTP/2, which is not offered.
	web_config_auth_client_san.bad.yaml) echo accepted ;;     # Bad for its clients.
	web_config_noAuth.good.blocking.yml) echo refused ;;      # The system's authorities would let anybody in.
	web_config_noAuth_someCurves.good.yml) echo refused ;;    # CurveP521 alone.
	*.bad.* | *junk*) echo refused ;;
	*) echo accepted ;;
	esac
}

for file in *.yml *.yaml; do
	code=0
	GPU_NODE_EXPORTER__HTTP__WEB_CONFIG_FILE=$file "$program" check-config >/dev/null 2>"$work/said" || code=$?
	case $code in 0) found=accepted ;; 64) found=refused ;; *) found="exit $code" ;; esac
	printf '%-58s %s\n' "$file" "$found"
	sed 's/^gpu-node-exporter: /    /' "$work/said"
	[ "$found" = "$(expected "$file")" ] || { echo "expected: $(expected "$file")"; exit 1; }
done

serve() {
	stop
	: >"$work/log"
	GPU_NODE_EXPORTER__HTTP__WEB_CONFIG_FILE=$1 "$program" serve 2>"$work/log" &
	daemon=$!
	until address=$(grep -oE 'https?://127.0.0.1:[0-9]+' "$work/log"); do
		kill -0 $daemon
		read -rt 0.1 <> <(:) || true
	done
	address=${address/127.0.0.1/localhost}
	printf '\n%s\n' "$1"
}

# ask STATUS PATH ARGUMENTS...: STATUS is 000 where there is to be no answer. The certificate itself is trusted: its authorities
# have a purpose (any extended key usage) that OpenSSL refuses.
ask() {
	local wanted=$1 path=$2 got
	shift 2
	got=$(curl -sS -o /dev/null -w '%{http_code}' --cacert server.crt "$@" "$address$path" 2>"$work/said") || true
	printf '  curl %s %s: %s %s\n' "$*" "$path" "$got" "$(sed -n '1s/^curl: //p' "$work/said")"
	[ "$got" = "$wanted" ] || { echo "expected: $wanted"; cat "$work/log"; exit 1; }
}

one=(--cert client_selfsigned.pem --key client_selfsigned.key)
two=(--cert client2_selfsigned.pem --key client2_selfsigned.key)
for file in minimal.yml web_config_noAuth.good.yml web_config_noAuth_allCiphers.good.yml \
	web_config_noAuth_allCurves.good.yml web_config_noAuth_tlsInline.good.yml web_config_noAuth_noHTTP2Cipher.bad.yml; do
	serve $file
	ask 200 /metrics
done
serve web_config_noAuth.good.yml
ask 000 /metrics --tls-max 1.1 --tlsv1.1
ask 000 /metrics "${one[@]}"
address=${address/https/http} ask 400 /metrics
serve web_config_noAuth_someCiphers.good.yml
ask 200 /metrics --ciphers ECDHE-RSA-AES128-GCM-SHA256
ask 000 /metrics --tlsv1.3
serve tls_config_noAuth.requireanyclientcert.good.yml
ask 200 /metrics "${one[@]}"
ask 403 /metrics
serve tls_config_noAuth.requireandverifyclientcert.good.yml
ask 200 /metrics "${one[@]}"
ask 000 /metrics "${two[@]}"
ask 403 /metrics
ask 200 /livez
serve web_config_auth_client_san.good.yaml
ask 200 /metrics "${two[@]}"
serve web_config_auth_client_san.bad.yaml
ask 000 /metrics "${two[@]}"
serve web_config_users.good.yml
ask 401 /metrics
ask 200 /metrics --user dave:dave123
ask 200 /metrics --user carol:carol123
ask 401 /metrics --user dave:bad
ask 401 /metrics --user nonexistent:nonexistent
serve web_config_users_noTLS.good.yml
ask 200 /metrics --user dave:dave123
serve web_config_headers.good.yml
ask 200 /metrics
serve web_config_rate_limiter_one_second.yaml
ask 429 /metrics
serve web_config_rate_limiter_nonblocking.yaml
ask 200 /metrics
