# In a mount namespace of its own: the stock device plugin, with configuration $1. It knows RDMA devices by their PCI
# function alone, and soft-RoCE has none: here, and nowhere else, the one of eth0 has the guest's device.
set -euo pipefail
function=$(readlink -f /sys/class/net/eth0/device/..)
functions=/sys/bus/pci/devices
as=$(mktemp -d)
cp "$function/modalias" "$as"
driver=$(readlink -f "$function/driver")
mount -t tmpfs tmpfs $functions
shown=$functions/$(basename "$function")
mkdir -p "$shown/net/eth0" "$shown/infiniband/$GUEST_DEVICE"
cp "$as/modalias" "$shown"
ln -s "$driver" "$shown/driver"
exec k8s-rdma-shared-dp --config-file "$1"
