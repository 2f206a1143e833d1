package v1alpha1

import (
	"time"

	"github.com/spf13/pflag"
)

func (c *Agent) joinOptions(f *pflag.FlagSet) {
	f.StringSliceVar(&c.Join, "join", nil, "URL of a server: https://server:6443; several, separated by commas")
	f.StringVar(&c.Token, "token", "",
		"join token, needed the first time (see coracle token create); - reads it from standard input")
	f.StringVar(&c.TokenFile, "token-file", "", "file containing the join token")
}

func (c *Agent) options(f *pflag.FlagSet) {
	f.StringVar(&c.NodeName, "node-name", "", "name of the node (default the host's name)")
	f.StringVar(&c.NodeIP, "node-ip", "", "address of the node (default the address of the default route)")
	f.StringSliceVar(&c.NodeLabels, "node-labels", nil, "labels of the node, key=value")
	f.StringSliceVar(&c.NodeTaints, "node-taints", nil, "taints of the node, key=value:Effect")
	f.IntVar(&c.MaxPods, "max-pods", 110, "maximum number of pods on the node")
	f.StringVar(&c.AgentListen, "agent-listen", ":10250", "address and port of the node's API (logs, exec)")
	f.StringVar(&c.PodManifestPath, "pod-manifest-path", "",
		"folder with manifests of static pods, which run without an API server (default DATA-DIR/agent/pod-manifests)")
	f.StringVar(&c.Containerd, "containerd", "", "socket of a containerd on the host, instead of the embedded one")
}

func (c *Agent) resourceOptions(f *pflag.FlagSet) {
	f.StringSliceVar(&c.KubeReserved, "kube-reserved", nil,
		"resources reserved for the system, such as memory=512Mi,cpu=100m,pid=1000 (default a 16th of the memory, between "+
			"128Mi and 512Mi, and 1024 process IDs)")
	f.StringSliceVar(&c.EvictionHard, "eviction-hard", nil,
		"eviction thresholds, such as nodefs.available<10%; signals not listed keep their defaults "+
			"(memory.available<100Mi, 5% of disks and inodes), 0% disables one")
	f.DurationVar(&c.EvictionTransition, "eviction-pressure-transition-period", 5*time.Minute,
		"how long a pressure condition stays true after the pressure ended")
	f.Int64Var(&c.PodMaxPIDs, "pod-max-pids", 4096, "maximum number of processes and threads in a pod; -1 for no limit")
	f.BoolVar(&c.SingleProcessOOMKill, "single-process-oom-kill", false,
		"on cgroup v2, end only the process that exceeds a container's memory limit instead of the whole container")
	f.StringVar(&c.SwapBehavior, "swap-behavior", NoSwap,
		"swap that containers get on cgroup v2: NoSwap, or LimitedSwap for Burstable pods' containers, in proportion to "+
			"their memory requests")
	f.Int64Var(&c.PodMaxConnections, "pod-max-connections", 4096,
		"maximum number of open connections that a pod began; -1 for no limit")
	f.Int64Var(&c.UserNamespaceIDs, "user-namespaces-ids-per-pod", userNamespaceUnit,
		"number of user and group IDs of a pod with hostUsers: false, a multiple of 65536, taken from the ranges of user "+
			"kubelet in /etc/subuid and /etc/subgid (default all IDs from 65536 on)")
	f.StringSliceVar(&c.AllowedUnsafeSysctls, "allowed-unsafe-sysctls", nil,
		"unsafe sysctls of the network, IPC and user namespaces that pods may set, by name or prefix, such as net.core.*")
	f.BoolVar(&c.PodMetadataAccess, "pod-metadata-access", false,
		"allow pods to connect to link-local addresses such as 169.254.169.254, where clouds serve the machine's credentials")
	f.BoolVar(&c.PodProbeAnyHost, "pod-probe-any-host", false,
		"allow probes and hooks of pods to name the machine's loopback, link-local addresses and the node's own ports")
}

func (c *Agent) imageOptions(f *pflag.FlagSet) {
	f.IntVar(&c.ImageGCHigh, "image-gc-high-threshold", 85,
		"disk usage in percent at which unused images are removed; 100 disables it")
	f.IntVar(&c.ImageGCLow, "image-gc-low-threshold", 80, "disk usage in percent down to which unused images are removed")
	f.StringVar(&c.CredentialConfig, "image-credential-provider-config", "",
		"CredentialProviderConfig file, or folder of them: programs that provide registry credentials for images")
	f.StringVar(&c.CredentialBinDir, "image-credential-provider-bin-dir", "", "folder of these programs")
}
