systemd-sysusers gpu-node-exporter.conf
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	# 1: the first installation. Whether it starts is the distribution's preset.
	[ "$1" != 1 ] || systemctl preset gpu-node-exporter.service
fi
