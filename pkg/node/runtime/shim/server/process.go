//go:build cgo

package server

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/user"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/node/runtime/shim"
)

var rlimits = map[string]int{
	"RLIMIT_CPU": unix.RLIMIT_CPU, "RLIMIT_FSIZE": unix.RLIMIT_FSIZE, "RLIMIT_DATA": unix.RLIMIT_DATA,
	"RLIMIT_STACK": unix.RLIMIT_STACK, "RLIMIT_CORE": unix.RLIMIT_CORE, "RLIMIT_NPROC": unix.RLIMIT_NPROC,
	"RLIMIT_NOFILE": unix.RLIMIT_NOFILE, "RLIMIT_MEMLOCK": unix.RLIMIT_MEMLOCK, "RLIMIT_AS": unix.RLIMIT_AS,
}

// maxUsers limits the size of an image's /etc/passwd and /etc/group, in bytes.
const maxUsers = 4 << 20

func newProcess(p *specs.Process) (*libcontainer.Process, error) {
	lp := &libcontainer.Process{
		Args: p.Args, Env: p.Env, UID: int(p.User.UID), GID: int(p.User.GID), Cwd: p.Cwd,
		NoNewPrivileges: &p.NoNewPrivileges, AppArmorProfile: p.ApparmorProfile,
	}
	if p.ConsoleSize != nil {
		lp.ConsoleWidth, lp.ConsoleHeight = uint16(p.ConsoleSize.Width), uint16(p.ConsoleSize.Height)
	}
	if caps := p.Capabilities; caps != nil {
		lp.Capabilities = &configs.Capabilities{
			Bounding: caps.Bounding, Effective: caps.Effective, Permitted: caps.Permitted,
			Inheritable: caps.Inheritable, Ambient: caps.Ambient,
		}
	}
	for _, g := range p.User.AdditionalGids {
		lp.AdditionalGroups = append(lp.AdditionalGroups, int(g))
	}
	for _, r := range p.Rlimits {
		kind, ok := rlimits[r.Type]
		if !ok {
			return nil, fmt.Errorf("unknown resource limit %q", r.Type)
		}
		lp.Rlimits = append(lp.Rlimits, configs.Rlimit{Type: kind, Hard: r.Hard, Soft: r.Soft})
	}
	return lp, nil
}

// resolveUser sets the process's user and groups from the bundle and from the image's /etc/passwd and /etc/group,
// which it opens beneath rootfs: links in the image cannot lead out.
func resolveUser(p *specs.Process, b *shim.Bundle, rootfs string) error {
	root, err := os.OpenRoot(rootfs)
	if err != nil {
		return err
	}
	defer root.Close()
	spec := b.User
	if b.UID != nil {
		spec = strconv.FormatInt(*b.UID, 10) // the user's entry in passwd, if there is one, gives the groups
	}
	var files [2]*os.File
	for i, name := range []string{"etc/passwd", "etc/group"} {
		if info, err := root.Stat(name); err == nil && info.Mode().IsRegular() {
			if info.Size() > maxUsers {
				return fmt.Errorf("the image's /%s has %d bytes, and %d is the limit", name, info.Size(), maxUsers)
			}
			if files[i], err = root.Open(name); err == nil {
				defer files[i].Close()
			}
		}
	}
	passwd, group := reader(files[0]), reader(files[1])
	found, err := user.GetExecUser(spec, &user.ExecUser{Home: "/"}, passwd, group)
	if err != nil {
		return fmt.Errorf("the image's user %q: %w", spec, err)
	}
	p.User.UID, p.User.GID = uint32(found.Uid), uint32(found.Gid)
	groups := b.Groups
	if !b.StrictGroups {
		for _, g := range found.Sgids {
			groups = append(groups, int64(g))
		}
	}
	if b.GID != nil {
		p.User.GID = uint32(*b.GID)
	}
	groups = append(groups, int64(p.User.GID))
	slices.Sort(groups)
	p.User.AdditionalGids = nil
	for _, g := range slices.Compact(groups) {
		p.User.AdditionalGids = append(p.User.AdditionalGids, uint32(g))
	}
	if !slices.ContainsFunc(p.Env, func(e string) bool { return strings.HasPrefix(e, "HOME=") }) {
		p.Env = append(slices.Clone(p.Env), "HOME="+found.Home)
	}
	if p.User.UID != 0 && p.Capabilities != nil {
		caps := *p.Capabilities // only ambient capabilities, which Kubernetes does not set, survive the change of user
		caps.Effective, caps.Permitted = caps.Ambient, caps.Ambient
		p.Capabilities = &caps
	}
	return nil
}

// reader avoids a non-nil io.Reader that holds a nil *os.File.
func reader(f *os.File) io.Reader {
	if f == nil {
		return nil
	}
	return f
}
