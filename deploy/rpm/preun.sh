# 0 means removal, not upgrade.
if [ "$1" = 0 ] && [ -d /run/systemd/system ]; then
	systemctl --no-reload disable --now gpu-node-exporter.service
fi
