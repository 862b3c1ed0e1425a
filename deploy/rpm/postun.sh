if [ "$1" != 0 ] && [ -d /run/systemd/system ]; then
	systemctl try-restart gpu-node-exporter.service
fi
