systemd-sysusers gpu-node-exporter.conf
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	# 1 means first installation. The distribution's preset decides whether the unit is enabled, and never starts it.
	[ "$1" != 1 ] || systemctl preset gpu-node-exporter.service
fi
