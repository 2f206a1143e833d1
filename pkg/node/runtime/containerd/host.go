package containerd

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/sys/capability"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

type limits struct {
	caps        []string // names with CAP_
	oomScoreAdj int      // the lowest allowed value
}

// probeLimits queries the kernel. Without CAP_SYS_RESOURCE, a process cannot lower oom_score_adj below its own value.
func probeLimits() limits {
	var l limits
	if own, err := capability.NewPid2(0); err == nil && own.Load() == nil {
		for _, c := range capability.ListKnown() {
			if own.Get(capability.BOUNDING, c) && own.Get(capability.PERMITTED, c) {
				l.caps = append(l.caps, "CAP_"+strings.ToUpper(c.String()))
			}
		}
		if own.Get(capability.EFFECTIVE, capability.CAP_SYS_RESOURCE) {
			l.oomScoreAdj = -1000
			return l
		}
	}
	if data, err := os.ReadFile("/proc/self/oom_score_adj"); err == nil {
		l.oomScoreAdj, _ = strconv.Atoi(strings.TrimSpace(string(data)))
	}
	return l
}

func cgroup2() bool {
	var s unix.Statfs_t
	return unix.Statfs("/sys/fs/cgroup", &s) == nil && s.Type == unix.CGROUP2_SUPER_MAGIC
}

// swapAccounting reports whether the kernel limits the swap of cgroups, also if there is no swap yet.
func swapAccounting() bool {
	if cgroup2() {
		files, _ := filepath.Glob("/sys/fs/cgroup/*/memory.swap.max")
		return len(files) > 0
	}
	_, err := os.Stat("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes")
	return err == nil
}

// baseDevices are allowed in every container; libcontainer creates them.
var baseDevices = []specs.LinuxDeviceCgroup{
	{Allow: false, Access: "rwm"},
	{Allow: true, Type: "c", Access: "m"}, // making a device does not allow opening it
	{Allow: true, Type: "b", Access: "m"},
	char(1, 3), char(1, 5), char(1, 7), char(1, 8), char(1, 9), char(5, 0), char(5, 2), char(136, -1),
}

func char(major, minor int64) specs.LinuxDeviceCgroup {
	d := specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Access: "rwm"}
	if minor >= 0 {
		d.Minor = &minor
	}
	return d
}

func devices(s runtime.Spec, spec *specs.Spec) error {
	list, linux := s.Devices, spec.Linux
	linux.Resources.Devices = baseDevices
	if s.Privileged {
		linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
		list = nil
		err := filepath.WalkDir("/dev", func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return nil //nolint:nilerr // devices come and go
			case d.IsDir() && (path == "/dev/pts" || path == "/dev/shm" || path == "/dev/fd" || path == "/dev/mqueue"):
				return filepath.SkipDir
			case d.Type()&fs.ModeDevice != 0 && path != "/dev/console":
				list = append(list, runtime.Device{HostPath: path})
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for _, d := range list {
		path := d.HostPath
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			if s.Privileged {
				continue
			}
			return fmt.Errorf("device %s: %w", path, err)
		}
		kind := "c"
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFBLK:
			kind = "b"
		case unix.S_IFCHR:
		default:
			return fmt.Errorf("%s is not a device", path)
		}
		major, minor := int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev))
		mode := os.FileMode(st.Mode &^ unix.S_IFMT)
		if at := cmp.Or(d.ContainerPath, path); s.Users != nil && (at != path || !strings.HasPrefix(path, "/dev/")) {
			// In a user namespace libcontainer cannot make device nodes. It bind-mounts the host's device of the same
			// path below /dev. Other devices need an explicit mount.
			spec.Mounts = append(spec.Mounts, specs.Mount{
				Destination: at,
				Type:        "bind",
				Source:      path,
				Options:     []string{"bind"},
			})
		} else {
			linux.Devices = append(linux.Devices, specs.LinuxDevice{
				Path: at, Type: kind, Major: major, Minor: minor, FileMode: &mode, UID: &st.Uid, GID: &st.Gid,
			})
		}
		if !s.Privileged {
			linux.Resources.Devices = append(linux.Resources.Devices[:len(linux.Resources.Devices):len(linux.Resources.Devices)],
				specs.LinuxDeviceCgroup{
					Allow: true, Type: kind, Major: &major, Minor: &minor, Access: cmp.Or(d.Permissions, "rwm"),
				})
		}
	}
	return nil
}
