package pod

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/node/devices"
	"github.com/coracle-dev/coracle/pkg/node/devices/cdi"
	"github.com/coracle-dev/coracle/pkg/node/network"
	"github.com/coracle-dev/coracle/pkg/node/pod/eviction"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
	"github.com/coracle-dev/coracle/pkg/node/volume"
)

// containerID is a function of pod, name and attempt, so that an interrupted start finds the container it created.
func containerID(uid types.UID, name string, attempt int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%s/%d", uid, name, attempt))
	return hex.EncodeToString(sum[:])
}

func (m *Manager) cgroup(uid types.UID) string { return m.c.CgroupRoot + "/pod" + string(uid) }

// LogPath returns the log file of an instance: DIR/NAMESPACE_POD_UID/CONTAINER/ATTEMPT.log.
func LogPath(dir string, p *corev1.Pod, name string, attempt int) string {
	return filepath.Join(dir, logDirName(p), name, strconv.Itoa(attempt)+".log")
}

type build struct {
	pod     *corev1.Pod
	c       *corev1.Container
	image   runtime.Image
	sandbox network.Sandbox
	volumes map[string]volume.Mounted
	podIP   string
	attempt int
	pidNS   string
	devices devices.Given
	claimed cdi.Edits
}

// spec returns the runtime's specification of an instance. Errors are reported as CreateContainerConfigError: the pod
// is invalid on this node, or refers to a missing object.
func (m *Manager) spec(ctx context.Context, b build) (runtime.Spec, error) {
	p, c := b.pod, b.c
	s := runtime.Spec{
		ID: containerID(p.UID, c.Name, b.attempt), PodUID: string(p.UID), Image: b.image.ID,
		WorkingDir: c.WorkingDir, CgroupParent: m.cgroup(p.UID),
		NetNS: b.sandbox.NetNS, IPCNS: b.sandbox.IPCNS, UTSNS: b.sandbox.UTSNS, PIDNS: b.pidNS,
		TTY: c.TTY, Stdin: c.Stdin, StdinOnce: c.StdinOnce,
		LogPath: LogPath(m.c.LogDir, p, c.Name, b.attempt),
	}
	s.Users, s.Sysctls = usersOf(b.sandbox), userSysctls(p)
	if p.Spec.HostNetwork {
		s.NetNS = "host"
	}
	if p.Spec.HostIPC {
		s.IPCNS = "host"
	}
	if p.Spec.HostPID {
		s.PIDNS = "host"
	}
	if c.Lifecycle != nil && c.Lifecycle.StopSignal != nil {
		s.StopSignal = string(*c.Lifecycle.StopSignal)
	}
	env, err := m.environment(ctx, b)
	if err != nil {
		return s, err
	}
	s.Hostname, _ = hostnames(p, m.c.ClusterDomain)
	if p.Spec.HostNetwork {
		s.Hostname = m.c.NodeName
	}
	s.Env = append([]string{"HOSTNAME=" + s.Hostname}, deviceEnv(b.devices)...)
	s.Env = append(s.Env, env.list()...)
	addDevices(&s, b.devices)
	for _, edits := range []cdi.Edits{b.devices.CDI, b.claimed} {
		addEdits(&s, edits)
	}
	if s.Command, err = env.expand(c.Command); err != nil {
		return s, fmt.Errorf("command: %w", err)
	}
	if s.Args, err = env.expand(c.Args); err != nil {
		return s, fmt.Errorf("args: %w", err)
	}
	if err := m.security(&s, p, c, b.image); err != nil {
		return s, err
	}
	if err := m.mounts(&s, b, env.vars); err != nil {
		return s, err
	}
	for _, d := range []string{filepath.Dir(s.LogPath)} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return s, err
		}
	}
	return s, m.c.Failpoints.At("pod.log-dir")
}

func (m *Manager) mounts(s *runtime.Spec, b build, vars map[string]string) error {
	p, c := b.pod, b.c
	taken := map[string]bool{}
	for i, v := range c.VolumeMounts {
		mounted, ok := b.volumes[v.Name]
		if !ok || mounted.Block {
			return fmt.Errorf("volume %q of mount %s is not set up", v.Name, v.MountPath)
		}
		root, err := m.mountSource(b, i, mounted, vars)
		if err != nil {
			return err
		}
		target := v.MountPath
		if !filepath.IsAbs(target) {
			target = filepath.Join("/", target)
		}
		mt := runtime.Mount{
			Source:   root,
			Target:   target,
			ReadOnly: v.ReadOnly || mounted.ReadOnly,
			NoExec:   mounted.NoExec,
			MapIDs:   s.Users != nil && !mounted.Mapped,
		}
		if v.RecursiveReadOnly != nil && *v.RecursiveReadOnly != corev1.RecursiveReadOnlyDisabled {
			mt.RecursiveReadOnly = true
		}
		if err := m.propagate(&mt, v.MountPropagation, s.Users != nil); err != nil {
			return err
		}
		taken[filepath.Clean(target)] = true
		s.Mounts = append(s.Mounts, mt)
	}
	if err := blockDevices(s, b); err != nil {
		return err
	}
	dir := m.volumes.PodDir(p.UID)
	for _, f := range []struct{ file, target string }{
		{"hosts", "/etc/hosts"}, {"resolv.conf", "/etc/resolv.conf"}, {"hostname", "/etc/hostname"},
	} {
		if !taken[f.target] {
			s.Mounts = append(s.Mounts, runtime.Mount{
				Source: filepath.Join(dir, f.file), Target: f.target, MapIDs: s.Users != nil,
				ReadOnly: c.SecurityContext != nil && c.SecurityContext.ReadOnlyRootFilesystem != nil &&
					*c.SecurityContext.ReadOnlyRootFilesystem,
			})
		}
	}
	if path := c.TerminationMessagePath; path != "" && !taken[filepath.Clean(path)] {
		return m.terminationLog(s, filepath.Join(dir, "containers", c.Name, s.ID[:12]), path)
	}
	return nil
}

// mountSource returns the host path of a container's mount i: the volume's root, or its subPath.
func (m *Manager) mountSource(b build, i int, mounted volume.Mounted, vars map[string]string) (string, error) {
	v, sub := b.c.VolumeMounts[i], b.c.VolumeMounts[i].SubPath
	if v.SubPathExpr != "" {
		var err error
		if sub, err = Expand(v.SubPathExpr, vars); err != nil {
			return "", fmt.Errorf("failed to expand subPath expression: %w", err)
		}
		if unresolved(v.SubPathExpr, vars) {
			return "", fmt.Errorf("failed to expand subPath expression %q: a variable is not set", v.SubPathExpr)
		}
	}
	if sub != "" {
		if err := checkSubPath(sub); err != nil {
			return "", err
		}
		return m.volumes.SubPath(b.pod.UID, v.Name, mounted.Path, sub, b.c.Name, i, v.ReadOnly || mounted.ReadOnly)
	}
	if mounted.CreateMissing {
		if _, err := os.Stat(mounted.Path); errors.Is(err, os.ErrNotExist) {
			return mounted.Path, os.MkdirAll(mounted.Path, 0o755)
		}
	}
	return mounted.Path, nil
}

// propagate sets a mount's propagation, and makes its source a shared mount if needed.
func (m *Manager) propagate(mt *runtime.Mount, mode *corev1.MountPropagationMode, users bool) error {
	if mode == nil {
		return nil
	}
	switch *mode {
	case corev1.MountPropagationHostToContainer:
		mt.Propagation = "rslave"
	case corev1.MountPropagationBidirectional:
		if users {
			return fmt.Errorf("mountPropagation Bidirectional of mount %s is not possible with hostUsers: false: the kernel "+
				"keeps mounts of a user namespace from the node", mt.Target)
		}
		mt.Propagation = "rshared"
	}
	if m.c.Share != nil && mt.Propagation != "" {
		return m.c.Share(mt.Source)
	}
	return nil
}

func (m *Manager) terminationLog(s *runtime.Spec, file, path string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Chmod(0o666), f.Close()); err != nil {
		return err
	}
	s.Mounts = append(s.Mounts, runtime.Mount{Source: file, Target: path, MapIDs: s.Users != nil})
	return m.c.Failpoints.At("pod.termination-log")
}

func checkSubPath(sub string) error {
	if strings.HasPrefix(sub, "/") {
		return fmt.Errorf("subPath %q must not be an absolute path", sub)
	}
	for _, part := range strings.Split(sub, "/") {
		if part == ".." {
			return fmt.Errorf("subPath %q must not contain '..'", sub)
		}
	}
	return nil
}

// unresolved reports whether s refers to a variable that is not set.
func unresolved(s string, vars map[string]string) bool {
	for i := 0; i+1 < len(s); i++ {
		if s[i] != '$' {
			continue
		}
		if s[i+1] == '$' {
			i++
			continue
		}
		if end := strings.IndexByte(s[i:], ')'); s[i+1] == '(' && end > 0 {
			if _, ok := vars[s[i+2:i+end]]; !ok {
				return true
			}
		}
	}
	return false
}

const period = 100_000 // microseconds

func shares(milli int64) uint64 { return uint64(min(max(milli*1024/1000, 2), 262144)) }

// quota converts millicores into microseconds per period; 0 means no limit.
func quota(milli int64) int64 {
	if milli <= 0 {
		return 0
	}
	return max(milli*period/1000, 1000)
}

// capacity is the node's memory and the swap that pods may use, in bytes.
type capacity struct{ memory, swap int64 }

func (c Config) memory() capacity { return capacity{memory: c.MemoryCapacity, swap: c.SwapCapacity} }

// swapOf returns how many bytes of swap a container may use: its memory request's share of the node's memory, of the
// swap for pods (KEP-2400, LimitedSwap). Containers of Guaranteed, BestEffort and critical pods get none.
func (c capacity) swapOf(p *corev1.Pod, r corev1.ResourceRequirements) int64 {
	request := r.Requests.Memory()
	switch {
	case p.Status.QOSClass != corev1.PodQOSBurstable, request.IsZero(), request.Cmp(*r.Limits.Memory()) == 0,
		request.Value() > c.memory, eviction.Critical(p):
		return 0
	}
	return int64(float64(request.Value()) / float64(c.memory) * float64(c.swap))
}

// resources returns a container's cgroup settings: amounts, huge page limits, and oom_score_adj from the QoS class.
func resources(p *corev1.Pod, c *corev1.Container, a amounts, node capacity) runtime.Resources {
	r := runtime.Resources{CPUShares: a.Shares, CPUQuota: quota(a.CPULimit), MemoryBytes: a.MemoryLimit}
	r.SwapBytes = node.swapOf(p, c.Resources)
	if r.CPUQuota > 0 {
		r.CPUPeriod = period
	}
	for name, q := range c.Resources.Limits {
		if size, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix); ok {
			if r.HugePages == nil {
				r.HugePages = map[string]uint64{}
			}
			r.HugePages[strings.TrimSuffix(size, "i")+"B"] = uint64(q.Value())
		}
	}
	switch p.Status.QOSClass {
	case corev1.PodQOSGuaranteed:
		r.OOMScoreAdj = -997
	case corev1.PodQOSBestEffort:
		r.OOMScoreAdj = 1000
	default:
		r.OOMScoreAdj = 999
		if node.memory > 0 {
			r.OOMScoreAdj = int(min(max(1000-1000*c.Resources.Requests.Memory().Value()/node.memory, 3), 999))
		}
	}
	return r
}
