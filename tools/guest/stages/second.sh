# Process 1 of a guest from here on: its network, its soft-RoCE device, the job, its end.
control=/run/guest
. $control/variables   # GUEST_NODE, GUEST_ADDRESS, GUEST_GATEWAY, MTU, MODULES, OUT, FOLDER
trap 'sync; busybox poweroff -f; sleep 60' EXIT
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

mkdir -p /dev/pts /lib/modules "$OUT"
mount -t devpts devpts /dev/pts
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs tmpfs /var/tmp
mount --bind "$MODULES" /lib/modules     # the kernel and the job ask modprobe for more
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=none out "$OUT" || exit
for port in /sys/class/virtio-ports/*; do
    read -r "said_by_$(< "$port/name")" <<< "/dev/${port##*/}"
done

hostname "guest-$GUEST_NODE"
ip link set lo up
ip link set eth0 mtu "$MTU" up
ip addr add "$GUEST_ADDRESS/24" dev eth0
if [ -n "$GUEST_GATEWAY" ]; then ip route add default via "$GUEST_GATEWAY"; fi
rdma link add rxe0 type rxe netdev eth0
# Each address is a GID: the link-local one counts only when nobody else was found to have it.
for _ in {1..40}; do
    ip -6 addr show dev eth0 tentative | grep -q inet6 || break
    sleep .1
done

ulimit -l unlimited
cut -d' ' -f1 /proc/uptime > $control/booted
cd "$FOLDER" || cd /
bash $control/job.sh < /dev/null > "$said_by_out" 2> "$said_by_err"
echo $? > $control/status
