systemd-sysusers gpu-node-exporter.conf
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	# 1: the first installation. The distribution's preset enables the unit or not, and never starts it.
	[ "$1" != 1 ] || systemctl preset gpu-node-exporter.service
fi
