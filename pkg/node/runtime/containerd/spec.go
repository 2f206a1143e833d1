package containerd

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
	"github.com/coracle-dev/coracle/pkg/node/runtime/shim"
)

const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// defaultCaps are the default capabilities of Docker and containerd.
var defaultCaps = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID", "CAP_SETUID",
	"CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
}

var maskedPaths = []string{
	"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
	"/proc/timer_list",
	"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
}

var readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}

func (r *Runtime) bundle(s runtime.Spec, img *image, dir string, lower []string) (*shim.Bundle, error) {
	args, err := command(s, img)
	if err != nil {
		return nil, err
	}
	b := &shim.Bundle{
		ID: s.ID, Lower: lower, User: img.config.User, UID: s.UID, GID: s.GID, Groups: s.Groups, StrictGroups: s.StrictGroups,
		LogPath: s.LogPath, TTY: s.TTY, Stdin: s.Stdin, StdinOnce: s.StdinOnce,
	}
	caps := capabilities(s, r.limits.caps)
	process := &specs.Process{
		Terminal: s.TTY, Args: args, Env: environment(s, img), Cwd: workingDir(s, img),
		NoNewPrivileges: s.NoNewPrivs, Rlimits: nil,
		Capabilities: &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
	}
	process.OOMScoreAdj = new(max(s.Resources.OOMScoreAdj, r.limits.oomScoreAdj))
	b.Spec = specs.Spec{
		Version: specs.Version, Process: process, Hostname: s.Hostname,
		Root:   &specs.Root{Path: shim.Rootfs(dir), Readonly: s.ReadonlyRootfs},
		Mounts: mounts(s),
		Linux: &specs.Linux{
			CgroupsPath: filepath.Join("/", s.CgroupParent, s.ID),
			Sysctl:      s.Sysctls,
			Resources:   resources(s.Resources),
			Namespaces:  namespaceList(s),
		},
	}
	linux := b.Spec.Linux
	if s.UTSNS != "" {
		b.Spec.Hostname = "" // set by the creator of the namespace
	}
	if !s.Privileged && !s.UnmaskedProc {
		linux.MaskedPaths, linux.ReadonlyPaths = maskedPaths, readonlyPaths
	}
	if u := s.Users; u != nil {
		b.Users = &shim.Users{Path: u.Path, First: u.First, Count: u.Count}
		linux.UIDMappings = []specs.LinuxIDMapping{{HostID: u.First, Size: u.Count}}
		linux.GIDMappings = linux.UIDMappings
		// The shim joins b.Users.
		linux.Namespaces = append(linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
	}
	for _, m := range s.Mounts {
		if m.Propagation == "rshared" {
			linux.RootfsPropagation = "rshared"
		} else if m.Propagation == "rslave" && linux.RootfsPropagation == "" {
			linux.RootfsPropagation = "rslave"
		}
	}
	if err := devices(s, &b.Spec); err != nil {
		return nil, err
	}
	if cgroup2() && !r.config.SingleProcessOOMKill {
		if linux.Resources.Unified == nil {
			linux.Resources.Unified = map[string]string{}
		}
		linux.Resources.Unified["memory.oom.group"] = "1"
	}
	if process.ApparmorProfile, err = r.profile(s); err != nil {
		return nil, err
	}
	linux.Seccomp, err = r.seccomp(s, &b.Spec)
	return b, err
}

// command combines the commands of image and pod by the rules of Kubernetes.
func command(s runtime.Spec, img *image) ([]string, error) {
	entry, args := img.config.Entrypoint, s.Args
	if len(s.Command) > 0 {
		entry = s.Command
	} else if len(args) == 0 {
		args = img.config.Cmd
	}
	all := append(slices.Clone(entry), args...)
	if len(all) == 0 {
		return nil, fmt.Errorf("image %s has no command: give one", s.Image)
	}
	return all, nil
}

// environment returns the image's variables, overridden by the container's.
func environment(s runtime.Spec, img *image) []string {
	env := []string{defaultPath}
	at := map[string]int{"PATH": 0}
	if s.TTY {
		at["TERM"] = len(env)
		env = append(env, "TERM=xterm")
	}
	for _, e := range append(slices.Clone(img.config.Env), s.Env...) {
		name, _, _ := strings.Cut(e, "=")
		if i, ok := at[name]; ok {
			env[i] = e
			continue
		}
		at[name] = len(env)
		env = append(env, e)
	}
	return env
}

func workingDir(s runtime.Spec, img *image) string {
	for _, dir := range []string{s.WorkingDir, img.config.WorkingDir} {
		if dir != "" {
			return filepath.Join("/", dir)
		}
	}
	return "/"
}

// capabilities returns a container's capabilities, limited to the host's.
func capabilities(s runtime.Spec, host []string) []string {
	set := map[string]bool{}
	all := func(on bool) {
		for _, c := range host {
			set[c] = on
		}
	}
	for _, c := range defaultCaps {
		set[c] = true
	}
	if s.Privileged {
		all(true)
	} else {
		change := func(names []string, on bool) {
			for _, name := range names {
				if name = strings.ToUpper(name); name != "ALL" {
					set["CAP_"+strings.TrimPrefix(name, "CAP_")] = on
				}
			}
		}
		isAll := func(n string) bool { return strings.EqualFold(n, "ALL") }
		if slices.ContainsFunc(s.AddCaps, isAll) {
			all(true)
		}
		if slices.ContainsFunc(s.DropCaps, isAll) {
			clear(set)
			if slices.ContainsFunc(s.AddCaps, isAll) {
				all(true)
			}
		}
		change(s.AddCaps, true)
		change(s.DropCaps, false)
	}
	var caps []string
	for _, c := range host {
		if set[c] {
			caps = append(caps, c)
		}
	}
	return caps
}

func mounts(s runtime.Spec) []specs.Mount {
	mode := "ro"
	if s.Privileged {
		mode = "rw"
	}
	sys := specs.Mount{
		Destination: "/sys",
		Type:        "sysfs",
		Source:      "sysfs",
		Options:     []string{"nosuid", "noexec", "nodev", mode},
	}
	list := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{
			Destination: "/dev",
			Type:        "tmpfs",
			Source:      "tmpfs",
			Options:     []string{"nosuid", "strictatime", "mode=755", "size=65536k"},
		},
		{
			Destination: "/dev/pts",
			Type:        "devpts",
			Source:      "devpts",
			Options:     []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"},
		},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		sys,
		{
			Destination: "/sys/fs/cgroup",
			Type:        "cgroup",
			Source:      "cgroup",
			Options:     []string{"nosuid", "noexec", "nodev", "relatime", mode},
		},
		{
			Destination: "/dev/shm",
			Type:        "tmpfs",
			Source:      "shm",
			Options:     []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"},
		},
	}
	if s.IPCNS == "host" {
		list[len(list)-1] = specs.Mount{
			Destination: "/dev/shm",
			Type:        "bind",
			Source:      "/dev/shm",
			Options:     []string{"rbind", "nosuid", "noexec", "nodev"},
		}
	}
	own := slices.Clone(s.Mounts)
	slices.SortStableFunc(own, func(a, b runtime.Mount) int {
		return strings.Count(filepath.Clean(a.Target), "/") - strings.Count(filepath.Clean(b.Target), "/")
	})
	for _, m := range own {
		target := filepath.Join("/", m.Target)
		list = slices.DeleteFunc(list, func(have specs.Mount) bool {
			return have.Destination == target && have.Type != "bind"
		})
		list = append(list, specs.Mount{Destination: target, Type: "bind", Source: m.Source, Options: mountOptions(m)})
	}
	return list
}

func mountOptions(m runtime.Mount) []string {
	options := []string{"rbind", "r" + strings.TrimPrefix(cmp.Or(m.Propagation, "private"), "r")}
	switch {
	case m.ReadOnly && m.RecursiveReadOnly:
		options = append(options, "ro", "rro")
	case m.ReadOnly:
		options = append(options, "ro")
	default:
		options = append(options, "rw")
	}
	if m.NoExec {
		options = append(options, "noexec")
	}
	if m.NoSUID {
		options = append(options, "nosuid")
	}
	if m.NoDev {
		options = append(options, "nodev")
	}
	if m.MapIDs {
		options = append(options, shim.MapIDs)
	}
	return options
}

func namespaceList(s runtime.Spec) []specs.LinuxNamespace {
	list := []specs.LinuxNamespace{{Type: specs.MountNamespace}}
	for kind, path := range map[specs.LinuxNamespaceType]string{
		specs.NetworkNamespace: s.NetNS, specs.IPCNamespace: s.IPCNS, specs.UTSNamespace: s.UTSNS,
		specs.PIDNamespace: s.PIDNS,
	} {
		if path != "host" {
			list = append(list, specs.LinuxNamespace{Type: kind, Path: path})
		}
	}
	if !s.Privileged && cgroup2() {
		list = append(list, specs.LinuxNamespace{Type: specs.CgroupNamespace})
	}
	slices.SortFunc(list, func(a, b specs.LinuxNamespace) int { return strings.Compare(string(a.Type), string(b.Type)) })
	return list
}

func resources(r runtime.Resources) *specs.LinuxResources {
	res := &specs.LinuxResources{}
	if r.CPUShares > 0 || r.CPUQuota != 0 {
		res.CPU = &specs.LinuxCPU{}
		if r.CPUShares > 0 {
			res.CPU.Shares = new(max(r.CPUShares, 2))
		}
		if r.CPUQuota != 0 {
			period := cmp.Or(r.CPUPeriod, 100_000)
			res.CPU.Quota, res.CPU.Period = new(r.CPUQuota), new(period)
		}
	}
	if r.MemoryBytes != 0 {
		res.Memory = &specs.LinuxMemory{Limit: new(r.MemoryBytes)}
	}
	switch {
	case !swapAccounting():
	case cgroup2(): // also without a memory limit
		res.Unified = map[string]string{"memory.swap.max": strconv.FormatInt(r.SwapBytes, 10)}
	case r.MemoryBytes != 0:
		res.Memory.Swap = new(r.MemoryBytes) // no swap in addition to memory
	}
	if r.PidsLimit > 0 {
		res.Pids = &specs.LinuxPids{Limit: new(r.PidsLimit)}
	}
	for _, size := range slices.Sorted(maps.Keys(r.HugePages)) {
		res.HugepageLimits = append(res.HugepageLimits, specs.LinuxHugepageLimit{Pagesize: size, Limit: r.HugePages[size]})
	}
	return res
}

// nativeOnly removes the processor's other architectures (such as x86 on x86-64) from a profile: their filters cost
// 20 ms of CPU time per container start. Programs for them need a Localhost profile.
func nativeOnly(all []specs.Arch) []specs.Arch {
	return slices.DeleteFunc(slices.Clone(all), func(a specs.Arch) bool {
		return a == specs.ArchX86 || a == specs.ArchX32 || a == specs.ArchARM || a == specs.ArchS390
	})
}

const maxProfile = 1 << 20

func readProfile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return bounded.All(f, maxProfile)
}

// seccomp returns the profile for the spec, nil for privileged containers.
func (r *Runtime) seccomp(s runtime.Spec, spec *specs.Spec) (*specs.LinuxSeccomp, error) {
	if s.Privileged || s.Seccomp == "unconfined" {
		return nil, nil
	}
	if s.Seccomp == "" || s.Seccomp == "runtime/default" {
		profile := seccomp.DefaultProfile(spec)
		if len(profile.Architectures) > 1 {
			profile.Architectures = nativeOnly(profile.Architectures)
		}
		return profile, nil
	}
	data, err := readProfile(s.Seccomp)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("seccomp profile %s does not exist on this node", s.Seccomp)
	} else if err != nil {
		return nil, err
	}
	profile := &specs.LinuxSeccomp{}
	if err := json.Unmarshal(data, profile); err != nil {
		return nil, fmt.Errorf("seccomp profile %s: %w", s.Seccomp, err)
	}
	return profile, nil
}
