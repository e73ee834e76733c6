#!/bin/busybox sh
# Process 1 of a guest until the host's files are mounted. Only busybox and the modules exist here.
# The host's root comes by 9p, read-only, with a tmpfs over it; then /bin/bash of the host goes on with second.sh.
b=/bin/busybox
fail() { echo "guest: $*"; $b poweroff -f; }

$b mkdir -p /proc /sys /dev /host /memory /root
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs devtmpfs /dev
while read -r file; do
    $b insmod "/modules/$file" || echo "guest: module $file was not taken"
done < /modules/order

share="trans=virtio,version=9p2000.L,msize=512000"
$b mount -t 9p -o "$share,ro,cache=loose" root /host || fail "no host root"
$b mount -t tmpfs -o size=75% tmpfs /memory || fail "no memory file system"
$b mkdir /memory/above /memory/work
$b mount -t overlay -o lowerdir=/host,upperdir=/memory/above,workdir=/memory/work overlay /root || fail "no overlay"
for part in proc sys dev; do
    $b mkdir -p "/root/$part"
    $b mount --move "/$part" "/root/$part"
done
$b mkdir -p /root/run /root/dev/shm
$b mount -t tmpfs tmpfs /root/run
$b mount -t tmpfs tmpfs /root/dev/shm
$b mkdir /root/run/guest
# Not cached: what one side writes the other reads at once.
$b mount -t 9p -o "$share,cache=none" control /root/run/guest || fail "no control folder"
# Not chroot: container runtimes want a root that pivot_root takes.
exec $b switch_root /root /bin/bash /run/guest/second.sh
