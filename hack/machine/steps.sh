#!/usr/bin/env bash
# Runs in the virtual machine: steps.sh STEP. Each step fails with the command that failed; its output is the log.
set -Eeuo pipefail
trap 'set +x; echo "failed at line $LINENO: $BASH_COMMAND" >&2' ERR
exec 9>&2
BASH_XTRACEFD=9 PS4='+ ${SECONDS} s: ' # where the time goes
cd /root/coracle
export HOME=/root
ctl() { coracle ctl "$@"; }

# until_true tries a command until it succeeds, for at most three minutes. Each try waits for an answer: nothing spins.
until_true() {
  local end=$((SECONDS + 180))
  until "$@" >/tmp/try 2>&1; do
    if [ $SECONDS -ge $end ]; then cat /tmp/try >&2; return 1; fi
    sleep 1
  done
}

# machine prints all that an installation may change and has to give back.
machine() {
  local skip=() path
  for path in /proc /sys /dev /tmp /root/coracle /root/.ssh /var/log /var/cache /var/lib/dpkg /var/lib/systemd \
    /var/lib/apt /var/lib/xfsprogs /var/backups '/var/tmp/systemd-private-*' /run/systemd /run/credentials \
    /run/log /run/udev /run/user /run/dbus; do
    skip+=(-path "$path" -o)
  done
  find / /run -xdev \( "${skip[@]}" -false \) -prune -o -printf '%p %y %m %l\n' | sort -u
  find /etc -xdev -type f -exec sha256sum {} + | sort
  # The sizes of tmpfs depend on the memory that the kernel found at its start.
  findmnt -rno TARGET,FSTYPE,OPTIONS | grep -v -e /run/user -e /run/credentials -e binfmt |
    sed -E 's/,(size|nr_inodes)=[0-9a-z]+//g' | sort
  nft list ruleset
  ip -o link | sed 's/^[0-9]*: //; s/ mtu.*//'
  ip route show table all | grep -v cache | sed 's/ expires [0-9]*sec//' | sort
  ip rule
  find /sys/fs/cgroup -maxdepth 1 -type d -not -name '*.mount' | sort # systemd makes and removes cgroups of mounts
  cat /sys/fs/cgroup/cgroup.subtree_control
  { cat /sys/kernel/security/apparmor/profiles 2>/dev/null || true; } | sort
  { sysctl -a 2>/dev/null || true; } | sort |
    grep -E '^(net\.ipv4\.(ip_forward|conf\.all)|net\.bridge|vm\.overcommit|kernel\.panic|.*inotify)'
}

served() { # the pods that stay, and their containers
  local status='{.status.containerStatuses[*].containerID} {.status.containerStatuses[*].restartCount}'
  ctl get pods -l 'app in (hello,notes)' \
    -o "jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} $status{\"\\n\"}{end}" | sort
}
answers() {
  curl -fsS --max-time 5 "http://$(ctl get service hello -o 'jsonpath={.spec.clusterIP}')" |
    grep -q 'Hello from a coracle'
}
ended() { # POD: the reason why its container ended
  ctl get pod "$1" -o 'jsonpath={.status.containerStatuses[0].state.terminated.reason}'
}
resize() { # POD CPU MEMORY
  ctl patch pod "$1" --subresource resize \
    --patch "spec: {containers: [{name: c, resources: {limits: {cpu: $2, memory: $3}}}]}"
}
configure() { # [LINE...]: the server's only options
  rm -rf /etc/coracle
  [ $# = 0 ] || install -D -m 0644 <(printf '%s\n' "$@") /etc/coracle/config.yaml
  systemctl restart coracle-server
  until_true coracle status
}

set -x
case $1 in
before) machine >before.txt ;;
install)
  dpkg -i coracle_*.deb
  systemctl enable --now coracle-server # returns when the node is Ready
  ctl get nodes | grep ' Ready '
  until_true coracle status
  coracle status
  systemctl show -p WatchdogTimestamp coracle-server | grep -q '=.'
  ! journalctl -u coracle-server -p err -q | grep .
  journalctl -u coracle-server -p info -q | grep 'msg=running'
  ;;
filesystems) # of the data directory, and refusals of those that cannot hold containers
  systemctl stop coracle-server
  coracle delete
  mkdir -p /disk/{xfs,btrfs,tmpfs,overlay,untyped} /overlay/{lower,upper,work}
  try() { # DIRECTORY: a cluster there runs a pod with a claim, is restarted, and deleted
    local begin=$SECONDS data=(--data-dir "$1")
    coracle start "${data[@]}" 9>&-
    coracle image load images/busybox.tar
    ctl apply -f examples/notes.yaml
    ctl rollout status statefulset/notes --timeout=120s
    ctl exec notes-0 -- sh -c 'cp /bin/busybox /tmp/busybox; /tmp/busybox true; rm -r /home; mkdir /home
      echo kept >/data/note'
    coracle stop "${data[@]}"
    coracle start "${data[@]}" 9>&-
    ctl wait pod/notes-0 --for=condition=Ready --timeout=60s
    ctl exec notes-0 -- grep kept /data/note
    until_true coracle status
    coracle delete "${data[@]}"
    echo "$(findmnt -no FSTYPE,OPTIONS -T "$(dirname "$1")"): $((SECONDS - begin)) s"
  }
  refused() { # DIRECTORY REASON: nothing is left there
    local text
    if text=$(coracle start --data-dir "$1/data" 2>&1); then return 1; fi
    echo "$text"
    [[ $text = *"$2"* ]]
    [ ! -e "$1/data" ]
  }
  truncate -s 1G /xfs.img /btrfs.img /untyped.img
  mkfs.xfs -q /xfs.img
  mount -o prjquota /xfs.img /disk/xfs
  try /disk/xfs/data
  umount /disk/xfs
  mkfs.btrfs -q /btrfs.img
  mount /btrfs.img /disk/btrfs
  try /disk/btrfs/data
  umount /disk/btrfs
  mount -t tmpfs tmpfs /disk/tmpfs
  try /disk/tmpfs/data
  for dir in /tmp /var; do
    mount --bind $dir $dir
    mount -o remount,bind,noexec $dir
  done
  try /var/lib/coracle
  umount /tmp /var
  mkfs.xfs -q -m crc=0 -n ftype=0 /untyped.img
  mount /untyped.img /disk/untyped
  refused /disk/untyped 'types of files'
  mount -t overlay -o lowerdir=/overlay/lower,upperdir=/overlay/upper,workdir=/overlay/work overlay /disk/overlay
  refused /disk/overlay '(overlay: '
  umount /disk/{tmpfs,untyped,overlay}
  rm -r /disk /overlay /{xfs,btrfs,untyped}.img
  rm -rf /root/.kube/cache # of clusters in other data directories, as kubectl leaves it
  systemctl start coracle-server
  ;;
docker) # started after Coracle and before it, and restarted; it keeps its rules
  works() { coracle status && ctl exec box -- wget -q -O - http://hello | grep Hello && contained; }
  contained() { # a container of Docker reaches another one, and the machine forwards for them
    local ip
    ip=$(docker inspect -f '{{.NetworkSettings.Networks.bridge.IPAddress}}' web)
    docker run --rm test wget -q -O - "http://$ip:8000" | grep Docker
    grep -qx 1 /proc/sys/net/ipv4/ip_forward
  }
  rules() { iptables-save | sed -E '/^#/d; s/ ?\[[0-9:]*\]//'; }
  docked() { # start or restart: returns when Docker has a container that serves
    systemctl "$1" docker
    docker rm -f web || true
    docker run -d --name web test sh -c 'echo from Docker >/index.html; httpd -f -p 8000 -h /'
  }
  pods() {
    systemctl start coracle-server
    coracle image load images/*.tar
    ctl apply -f examples/hello.yaml
    ctl run box --image busybox:1.36 -- sleep 36000
    ctl wait pod/box --for=condition=Ready --timeout=60s
    ctl rollout status deployment/hello --timeout=120s
  }
  ended() {
    systemctl stop coracle-server
    coracle delete
  }
  pods
  mkdir layers
  tar -xf images/busybox.tar -C layers
  systemctl start docker
  docker import "$(find layers/blobs -size +1M)" test
  docked start
  until_true works
  docked restart
  until_true works
  ended
  contained
  rules >without.txt
  docked restart
  contained
  rules | diff - without.txt
  pods
  until_true works
  ended
  contained
  rules | diff - without.txt
  systemctl stop docker.service docker.socket containerd
  ip link delete docker0
  nft flush ruleset
  modprobe -r br_netfilter || true
  sysctl net.ipv4.ip_forward=0
  echo -n docker-default >/sys/kernel/security/apparmor/.remove
  rm -rf layers /etc/docker/* /etc/cni /run/docker /run/containerd /var/lib/docker /var/lib/containerd
  for controller in hugetlb rdma misc; do # runc enabled them for Docker
    echo "-$controller" >/sys/fs/cgroup/cgroup.subtree_control || true
  done
  systemctl start coracle-server
  ;;
hello)
  coracle image load images/*.tar
  ctl apply -f examples/hello.yaml
  ctl rollout status deployment/hello --timeout=120s
  until_true answers
  ;;
pods)
  ctl run box --image busybox:1.36 --restart=Never -- sleep 36000
  ctl wait pod/box --for=condition=Ready --timeout=60s
  ctl exec box -- wget -q -O - http://hello | grep Hello
  ctl logs deployment/hello --tail=5
  coracle ctl port-forward deployment/hello 18080:8080 >/dev/null 2>&1 9>&- &
  until_true curl -fsS http://127.0.0.1:18080
  kill %1
  ;;
network)
  ctl create ingress hello --rule='hello.example.com/*=hello:80'
  ctl wait ingress/hello --for=jsonpath='{.status.loadBalancer.ingress}' --timeout=60s
  ip=$(ctl get ingress hello -o 'jsonpath={.status.loadBalancer.ingress[0].ip}')
  until_true curl -fsS -H 'Host: hello.example.com' "http://$ip/"
  ctl apply -f - <<'END'
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed}
spec: {podSelector: {matchLabels: {app: hello}}, policyTypes: [Ingress]}
END
  # Debian's busybox crashes with wget -T.
  refused() {
    local code
    code=$(ctl exec box -- sh -c 'timeout 3 wget -q -O - http://hello >/dev/null; echo $?') && [ "$code" -gt 0 ]
  }
  until_true refused
  ctl delete networkpolicy closed
  until_true ctl exec box -- wget -q -O - http://hello
  ;;
claim)
  ctl apply -f examples/notes.yaml
  ctl rollout status statefulset/notes --timeout=120s
  ctl exec notes-0 -- sh -c 'echo kept > /data/note; sync'
  ctl delete pod notes-0
  ctl wait pod/notes-0 --for=create --timeout=60s
  ctl wait pod/notes-0 --for=condition=Ready --timeout=60s
  ctl exec notes-0 -- cat /data/note | grep kept
  ;;
systems)
  coracle run three --image busybox:1.36 --wait -- sh -c 'echo done' | grep done
  code=0; coracle run four --image busybox:1.36 --wait -- sh -c 'exit 3' || code=$?
  [ $code = 3 ]
  ctl apply -f examples/workers/echo.yaml
  ctl wait worker/echo --for=condition=Ready --timeout=60s
  coracle send service/echo hello --wait | grep hello
  until_true ctl top node
  ;;
limits)
  ctl apply -f - <<'END'
apiVersion: v1
kind: Pod
metadata: {name: greedy}
spec:
  restartPolicy: Never
  containers:
  - {name: c, image: busybox:1.36, command: [sh, -c, 'tail /dev/zero; sleep 36000'], resources: {limits: {memory: 32Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: slow}
spec:
  containers:
  - name: c
    image: busybox:1.36
    command: [sleep, '36000']
    resources: {requests: {memory: 16Mi, cpu: 10m}, limits: {memory: 32Mi, cpu: 200m}}
END
  # A child exceeds the limit: the container ends as a whole, its shell included.
  killed() { [ "$(ended greedy)" = OOMKilled ]; }
  until_true killed
  ctl wait pod/slow --for=condition=Ready --timeout=60s
  limit() { ctl exec slow -- cat /sys/fs/cgroup/cpu.max | grep -q "^$1 "; }
  until_true limit 20000
  resize slow 400m 64Mi
  until_true limit 40000
  resize slow 100m 64Mi
  until_true limit 10000
  ctl get --raw "/api/v1/nodes/$(hostname)/proxy/stats/summary" | tr -d ' \n' |
    grep -q '\],"cpu":{[^}]*"psi":' # of a pod, behind its containers
  ctl delete pod slow greedy --now
  ;;
eviction) # under pressure of memory and of disk, the pod that uses most goes; the limit of processes holds
  served >served.txt
  # With less than 400 MiB this machine reads its programs from the disk again and again, for minutes.
  configure 'eviction-hard: [memory.available<400Mi]' 'eviction-pressure-transition-period: 1s' 'pod-max-pids: 64'
  eater() { # NAME MEDIUM COMMAND: writes to its volume
    ctl apply -f - <<END
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  restartPolicy: Never
  containers:
  - {name: c, image: busybox:1.36, command: [sh, -c, '$3; sleep 36000'], volumeMounts: [{name: v, mountPath: /v}]}
  volumes: [{name: v, emptyDir: {medium: "$2"}}]
END
  }
  evicted() { # POD RESOURCE
    ctl get pod "$1" -o 'jsonpath={.status.phase}, {.status.reason}: {.status.message}' | tee /dev/stderr |
      grep -q "Evicted: .*low on resource: $2"
  }
  condition() { # TYPE STATUS
    [ "$(ctl get nodes -o "jsonpath={.items[0].status.conditions[?(@.type=='$1')].status}")" = "$2" ]
  }
  # Most at once, the rest slowly, so that the node reacts in time.
  most=$(($(awk '/MemAvailable/ {print $2}' /proc/meminfo) / 1024 - 450))
  eater memory Memory "dd if=/dev/zero of=/v/most bs=1M count=$most; "'for i in $(seq 99); do
    dd if=/dev/zero of=/v/$i bs=1M count=2 && sleep 0.5; done'
  until_true evicted memory memory
  until_true condition MemoryPressure False
  served | diff served.txt -
  # Without the pod, the file systems have enough again.
  eater disk '' 'dd if=/dev/zero of=/v/data bs=1M count=400'
  full() { ctl exec disk -- sh -c 'pidof dd || ls -l /v/data' | grep -q 419430400; }
  until_true full
  read -r size left < <(df --output=size,avail -B1 / | tail -n 1)
  fallocate -l $((left - size * 5 / 100 + 100 * 1024 * 1024)) /filled
  until_true evicted disk ephemeral-storage
  rm /filled
  until_true condition DiskPressure False
  served | diff served.txt -
  ctl run bomb --image busybox:1.36 --restart=Never -- sh -c 'for i in $(seq 100); do sleep 36000 & done; wait'
  said() { ctl logs bomb | grep "can't fork"; }
  until_true said
  ctl delete pod memory disk bomb --now
  configure
  ;;
swap)
  dd if=/dev/zero of=/swap bs=1M count=256 status=none
  chmod 600 /swap
  mkswap /swap
  swapon /swap
  may() { ctl exec "$1" -- cat /sys/fs/cgroup/memory.swap.max | grep -x "$2"; }
  may box 0 # also containers without a memory limit
  configure 'swap-behavior: LimitedSwap'
  may box 0 # of a BestEffort pod, and started before
  ctl run burst --image busybox:1.36 --overrides '{"spec": {"containers": [{"name": "burst", "image": "busybox:1.36",
    "command": ["sleep", "36000"], "resources": {"requests": {"memory": "64Mi"}}}]}}'
  ctl wait pod/burst --for=condition=Ready --timeout=60s
  total=$(awk '/MemTotal/ {print $2}' /proc/meminfo) swap=$(awk '/SwapTotal/ {print $2}' /proc/meminfo)
  have=$(ctl exec burst -- cat /sys/fs/cgroup/memory.swap.max)
  [ $((have / 1024)) -ge $((65536 * swap / total - 8)) ] && [ $((have / 1024)) -le $((65536 * swap / total)) ]
  ctl delete pod burst --now
  configure
  swapoff /swap
  rm /swap
  ;;
firewall) # with the manual's rules and without, and reloaded
  works() { coracle status && ctl exec box -- wget -q -O - http://hello | grep Hello; }
  lost() { ! coracle status; }
  cp -a /etc/ufw /etc/firewalld /tmp
  ufw allow 22/tcp
  ufw --force enable
  until_true lost
  cat /tmp/try
  ufw allow from 10.42.0.0/16
  ufw route allow from 10.42.0.0/16
  ufw route allow to 10.42.0.0/16
  until_true works
  ufw reload
  until_true works
  ufw --force disable
  nft list tables | awk '/filter/ {print $2, $3}' |
    while read -r family name; do nft delete table "$family" "$name"; done
  systemctl start firewalld
  until_true lost
  cat /tmp/try
  firewall-cmd -q --permanent --zone=trusted --add-source=10.42.0.0/16
  firewall-cmd -q --reload
  until_true works
  systemctl stop firewalld
  until_true works
  rm -rf /etc/ufw /etc/firewalld
  cp -a /tmp/ufw /tmp/firewalld /etc
  ;;
apparmor)
  for kind in RuntimeDefault Unconfined; do
    ctl apply -f - <<END
apiVersion: v1
kind: Pod
metadata: {name: ${kind,,}}
spec:
  securityContext: {appArmorProfile: {type: $kind}}
  containers:
  - {name: c, image: busybox:1.36, command: [sleep, '36000']}
END
    ctl wait "pod/${kind,,}" --for=condition=Ready --timeout=60s
  done
  label() { ctl exec "$1" -- cat /proc/self/attr/current; }
  label box | grep -F 'coracle-default (enforce)' # the default without a profile in the pod
  label runtimedefault | grep -F 'coracle-default (enforce)'
  label unconfined | grep -Fx unconfined
  printf 'profile coracle-test { file, deny /etc/passwd r, }' | apparmor_parser -aK
  ctl run local --image busybox:1.36 --overrides \
    '{"spec": {"securityContext": {"appArmorProfile": {"type": "Localhost", "localhostProfile": "coracle-test"}}}}' \
    -- sleep 36000
  ctl wait pod/local --for=condition=Ready --timeout=60s
  ctl exec local -- cat /etc/group >/dev/null
  denied() { ctl exec local -- cat /etc/passwd 2>&1 | grep 'Permission denied'; }
  [ -n "$(denied || true)" ]
  ctl run missing --image busybox:1.36 --overrides \
    '{"spec": {"securityContext": {"appArmorProfile": {"type": "Localhost", "localhostProfile": "nothing"}}}}'
  said() { ctl describe pod missing | grep 'AppArmor profile "nothing" is not loaded on this node'; }
  until_true said
  ctl delete pod runtimedefault unconfined local missing --now
  echo -n coracle-test >/sys/kernel/security/apparmor/.remove
  ;;
nested)
  image=$(coracle image load coracle-image.tar | sed 's/^loaded //')
  ctl apply -f - <<END
apiVersion: v1
kind: Pod
metadata: {name: nested}
spec:
  containers:
  - name: c
    image: $image
    imagePullPolicy: Never
    securityContext: {privileged: true}
    readinessProbe: {exec: {command: [coracle, status]}, timeoutSeconds: 30, periodSeconds: 1}
    volumeMounts: [{name: data, mountPath: /var/lib/coracle}]
  volumes: [{name: data, emptyDir: {}}]
END
  ctl wait pod/nested --for=condition=Ready --timeout=180s
  inside() { ctl exec -i nested -- coracle "$@"; }
  inside image load - <images/hello.tar
  inside ctl apply -f - <examples/hello.yaml
  inside ctl rollout status deployment/hello --timeout=180s
  inside ctl get --raw /api/v1/namespaces/default/services/hello/proxy/ | grep 'Hello from a coracle'
  ctl delete pod nested --now
  ;;
memory) # what is available, before pods and with them
  {
    ctl get pods -A --no-headers | wc -l
    grep -E '^(MemTotal|MemFree|MemAvailable)' /proc/meminfo
    coracle status | grep Running
    ps -C coracle,coracle-shim -o rss,args
  } >>memory.txt
  cat memory.txt
  ;;
images) # a list with an image for each architecture, and one that is for another
  image=$(coracle image load coracle-image.tar | sed 's/^loaded //')
  ctl run list --image "$image" --image-pull-policy=Never --restart=Never --command -- coracle version
  ctl wait pod/list --for=jsonpath='{.status.phase}'=Succeeded --timeout=120s
  ctl logs list | grep "linux/$(dpkg --print-architecture)"
  coracle image load images-examples/guestbook.tar
  ctl run foreign --image docker.io/coracle/guestbook:latest --image-pull-policy=Never --restart=Never
  said() {
    ctl get pod foreign -o 'jsonpath={.status.containerStatuses[0].state.terminated.message}' |
      grep 'the image is for linux/amd64'
  }
  until_true said
  cat /tmp/try
  ctl delete pod list foreign --now
  ;;
kill)
  served >served.txt
  kill -9 "$(systemctl show -p MainPID --value coracle-server)"
  until_true coracle status
  until_true answers
  served | diff served.txt -
  ;;
restart)
  served >served.txt
  systemctl restart coracle-server
  until_true coracle status
  until_true answers
  served | diff served.txt -
  ;;
upgrade)
  served >served.txt
  dpkg -i coracle_*.deb
  until_true coracle status
  until_true answers
  served | diff served.txt -
  ;;
rebooted)
  until_true coracle status
  ctl rollout status deployment/hello --timeout=120s
  until_true answers
  ctl wait pod/notes-0 --for=condition=Ready --timeout=120s
  ctl exec notes-0 -- cat /data/note | grep kept
  ;;
writes) # N: works until the power is cut, and prints what the API server has acknowledged
  (while coracle image load images/hello.tar; do :; done) >/dev/null &
  ctl create deployment "cut$2" --image busybox:1.36 --replicas=3 -- sleep 36000
  for i in $(seq 1000); do
    for k in $(seq 20); do
      printf -- '---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: cut%s-%s-%s}\ndata: {a: b}\n' "$2" "$i" "$k"
    done | ctl create -f -
  done
  ;;
kept) # N: checks that all is there that the standard input names, and that the machine works
  sed -n 's/^configmap\/\(.*\) created$/\1/p' | sort >acknowledged.txt
  until_true coracle status
  ctl get configmaps -o 'jsonpath={range .items[*]}{.metadata.name}{"\n"}{end}' | sort >have.txt
  [ -s acknowledged.txt ]
  [ -z "$(comm -23 acknowledged.txt have.txt)" ]
  echo "$(wc -l <acknowledged.txt) acknowledged writes, $(grep -c "^cut$2-" have.txt) kept"
  if ctl get deployment "cut$2" >/dev/null 2>&1; then
    ctl rollout status "deployment/cut$2" --timeout=180s
    ctl delete deployment "cut$2" --now
  fi
  coracle image load images/hello.tar
  ctl rollout restart deployment/hello
  ctl rollout status deployment/hello --timeout=180s
  until_true answers
  grep "^cut$2-" have.txt | xargs -r -n 500 coracle ctl delete configmap >/dev/null
  ;;
clock) # of a board without one: each boot begins in 1970, and NTP answers later
  booted=$(($(date +%s) - $(cut -d. -f1 /proc/uptime)))
  boot_at() { date -s "@$(($1 + $(cut -d. -f1 /proc/uptime)))"; }
  works() { coracle status && ctl get nodes | grep ' Ready ' && answers && accepted; }
  accepted() { # the token of a pod
    local token
    token=$(ctl exec box -- cat /var/run/secrets/kubernetes.io/serviceaccount/token)
    curl -fsSk -H "Authorization: Bearer $token" https://127.0.0.1:6443/version
  }
  systemctl stop coracle-server
  coracle delete
  boot_at 60 # the kernel refuses a time before its start
  systemctl start coracle-server
  coracle image load images/*.tar
  ctl apply -f examples/hello.yaml
  ctl rollout status deployment/hello --timeout=120s
  ctl run box --image busybox:1.36 -- sleep 36000
  ctl wait pod/box --for=condition=Ready --timeout=60s
  until_true works
  served >served.txt
  boot_at "$booted"
  until_true works
  served | diff served.txt -
  boot_at 60
  systemctl restart coracle-server
  until_true works
  boot_at "$booted"
  until_true works
  served | diff served.txt -
  journalctl -u coracle-server -q | grep 'clock was set'
  ;;
purge)
  dpkg --purge coracle
  same() { machine >after.txt && diff before.txt after.txt; }
  until_true same # systemd disables the root's controllers one by one, some seconds later
  ;;
journal)
  journalctl --no-pager -b -o short-monotonic
  ls -l /var/lib/coracle
  ;;
*) echo "there is no step $1" >&2; exit 2 ;;
esac
