package server

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/node/host/mount"
	"github.com/coracle-dev/coracle/pkg/state/store"
)

// leastFree is the free space, in bytes, required to start a new cluster, leastToGoOn to start one that exists: freeing
// space needs a cluster that runs. leastRun is required in the run directory. leastInodes is the number of free inodes
// required in either.
const (
	leastFree   = 256 << 20
	leastToGoOn = 16 << 20
	leastRun    = 1 << 20
	leastInodes = 100
	manyFiles   = "du -x --inodes / | sort -n | tail"
)

// preflight detects problems that would make a server or node fail later. Each error is a line that names the
// problem and its fix.
func preflight(c config.Config, server, node bool) error {
	if os.Geteuid() != 0 {
		return errors.New("coracle needs root: run it with sudo")
	}
	least := int64(leastFree)
	var makeRoom func() bool
	if there, err := exists(filepath.Join(c.DataDir, nodeNameFile)); err == nil && there {
		least = leastToGoOn
		if server {
			makeRoom = func() bool { return store.MakeRoom(filepath.Join(c.DataDir, "store"), leastToGoOn) }
		}
	}
	errs := []error{space("data-dir", c.DataDir, least, makeRoom), space("run-dir", c.RunDir, leastRun, nil)}
	if server {
		errs = append(errs, free("listen", c.Listen), checkRestored(c.DataDir), checkLost(c.DataDir), checkJoined(c.DataDir))
	}
	if c.NodeIP == "" {
		_, err := outwardAddress()
		errs = append(errs, err)
	}
	if node {
		errs = append(errs, free("agent-listen", c.AgentListen), capabilities(), cgroups())
		if err := modules(); err != nil {
			errs = append(errs, err)
		} else {
			errs = append(errs, layers(c.DataDir))
		}
		if server {
			errs = append(errs, outsideRanges(c.NodeIP, c.ClusterCIDR, c.ServiceCIDR),
				sameRange(c.DataDir, c.ClusterCIDR))
		}
	}
	// prepare reports a run directory of another cluster, which has the same addresses.
	o, err := runDirOwner(c.RunDir)
	own := err == nil && (o.DataDir == "" || ownedBy(c, o.DataDir, 0) == nil)
	if server && node && own {
		errs = append(errs, alone(c, c.ClusterCIDR, c.ServiceCIDR))
	}
	return errors.Join(errs...)
}

func free(option, address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("%s %s: the port cannot be used (%w): stop the process that uses it, or choose another port with "+
			"--%s", option, address, err, option)
	}
	return l.Close()
}

// space checks the free space of a directory, which need not exist. makeRoom, if not nil, may free some.
func space(option, dir string, least int64, makeRoom func() bool) error {
	var s unix.Statfs_t
	dir = nearest(dir)
	if err := unix.Statfs(dir, &s); err != nil {
		return fmt.Errorf("%s %s: %w", option, dir, err)
	}
	if left := int64(s.Bavail) * s.Bsize; left < least && (makeRoom == nil || !makeRoom()) {
		return fmt.Errorf("%s: %s has %d MiB left and needs %d: free some, or choose another disk with --%[1]s",
			option, dir, left>>20, least>>20)
	}
	if s.Files > 0 && s.Ffree < leastInodes { // some file systems have no fixed number
		return fmt.Errorf("%s: the file system of %s has %d inodes left and needs %d: remove files (%s shows where "+
			"they are), or choose another disk with --%[1]s", option, dir, s.Ffree, leastInodes, manyFiles)
	}
	return nil
}

// nearest returns dir, or the first directory above it that exists.
func nearest(dir string) string {
	for dir != "/" {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		dir = filepath.Dir(dir)
	}
	return dir
}

// layers returns an error if the file system of the data directory cannot hold the files of containers.
func layers(dataDir string) error {
	dir := nearest(dataDir)
	if err := mount.TryDirectory(dir); err != nil {
		return fmt.Errorf("data-dir: the file system of %s cannot hold the files of containers (%w): choose a directory on "+
			"ext4, xfs, btrfs or tmpfs with --data-dir; a container that hosts Coracle needs a volume for it", dir, err)
	}
	return nil
}

func capabilities() error {
	needed := []struct {
		bit  uint
		name string
	}{{
		unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN",
	}, {unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"}, {unix.CAP_MKNOD, "CAP_MKNOD"}, {unix.CAP_SYS_CHROOT, "CAP_SYS_CHROOT"}}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return err
	}
	for _, n := range needed {
		if data[n.bit/32].Effective&(1<<(n.bit%32)) == 0 {
			return fmt.Errorf("the capability %s is missing, which is needed to create containers: grant it to this process "+
				"(a container that hosts Coracle must be privileged)", n.name)
		}
	}
	return nil
}

func cgroups() error {
	var s unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &s); err != nil {
		return errors.New("/sys/fs/cgroup does not exist: mount cgroup2 on it")
	}
	if s.Type == unix.CGROUP2_SUPER_MAGIC {
		return memoryController("/sys/fs/cgroup")
	}
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err != nil {
		return errors.New("/sys/fs/cgroup has neither cgroup v2 nor the v1 memory controller: mount cgroup2 on it")
	}
	return nil
}

// memoryController returns an error if a cgroup v2 lacks the memory controller, which kernels of boards disable by
// default.
func memoryController(cgroup string) error {
	list, err := bounded.File(filepath.Join(cgroup, "cgroup.controllers"), 4096)
	if err != nil || slices.Contains(strings.Fields(string(list)), "memory") {
		return err
	}
	return fmt.Errorf("%s has no memory controller: add \"cgroup_enable=memory\" to the kernel's command line (on a "+
		"Raspberry Pi in /boot/firmware/cmdline.txt) and reboot; a container that hosts Coracle needs the controller too",
		cgroup)
}
