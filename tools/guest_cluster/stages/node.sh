# In a guest: makes it a node of the cluster whose files are below folder $1, with the images on /dev/vda. Programs are
# found by PATH. Stays, and tells what the device has counted whenever that is asked in $OUT/<host>/asked.
set -uo pipefail
own=$1/$(hostname) place=/var/lib/weightsync-cluster logs=$OUT/$(hostname)
here=$(dirname "${BASH_SOURCE[0]}")
say() { echo "$(cut -d' ' -f1 /proc/uptime) s after its boot: $*"; }
answers() { until "$@" > /dev/null 2>&1; do sleep 0.3; done; }

mkdir -p "$logs"
modprobe -a virtio_blk ext4 br_netfilter veth bridge ib_umad  # the device plugin wants all of a device's files
echo 1 > /proc/sys/net/ipv4/ip_forward
mount --make-rshared /
store=/run/images
mkdir -p "$place" "$store" /var/lib/kubelet
mount -o ro /dev/vda "$store"
mount -t tmpfs -o size=80% tmpfs "$place"
mount -t tmpfs tmpfs /var/lib/kubelet
cp -r "$own/." "$place"
while read -r range address; do ip route add "$range" via "$address"; done < "$place/routes"

# The two databases are written to and copied, what they speak of is only read.
root=$place/containerd/root snapshots=io.containerd.snapshotter.v1.overlayfs
mkdir -p "$root/$snapshots/snapshots"
cp -r "$store/io.containerd.metadata.v1.bolt" "$root"
cp "$store/$snapshots/metadata.db" "$root/$snapshots"
ln -s "$store/$snapshots/snapshots"/* "$root/$snapshots/snapshots"
mkdir -p "$root/io.containerd.content.v1.content/ingest"
ln -s "$store/io.containerd.content.v1.content/blobs" "$root/io.containerd.content.v1.content"

containerd --config "$place/containerd.toml" > "$logs/containerd.log" 2>&1 &
answers ctr --address "$place/containerd/containerd.sock" version
say "containerd answers"
kubelet --config "$place/kubelet.json" --kubeconfig "$place/kubeconfig" --hostname-override "$(hostname)" \
    --node-ip "$GUEST_ADDRESS" --cert-dir "$place" --housekeeping-interval 5m > "$logs/kubelet.log" 2>&1 &
answers test -S /var/lib/kubelet/device-plugins/kubelet.sock
say "kubelet takes device plugins"
unshare --mount --propagation private bash "$here/plugin.sh" "$place/plugin.json" > "$logs/device-plugin.log" 2>&1 &

counters=/sys/class/infiniband/$GUEST_DEVICE/ports/1/hw_counters
# A pipe that nobody writes to: waiting at it forks no process, which is dear here.
mkfifo "$place/never" && exec 9<> "$place/never" || exit 1
while true; do
    read -r -t 0.5 -u 9
    read -r asked < "$logs/asked" || continue
    [ "$asked" = "${told:-}" ] && continue
    read -r sent < "$counters/sent_pkts"
    read -r received < "$counters/rcvd_pkts"
    echo "$asked $sent $received" > "$logs/told.new"
    mv "$logs/told.new" "$logs/told"
    told=$asked
done 2> /dev/null
