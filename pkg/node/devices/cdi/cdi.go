// Package cdi reads the device specifications that drivers put on this machine (Container Device Interface, version
// 1): what a container needs for a device.
//
// Its invariants: every read is bounded. A device whose specification contains something unsupported is refused,
// never applied in part.
package cdi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

const (
	maxFiles = 1024    // per directory
	maxFile  = 4 << 20 // bytes
	maxEdits = 4096    // of each kind, per container
	maxText  = 4096    // bytes of a path or variable
	maxName  = 253     // bytes of a vendor, class or device
)

// Dirs are the directories of specifications. A device in a later directory overrides one in an earlier directory.
var Dirs = []string{"/etc/cdi", "/var/run/cdi"}

// Edits are changes to a container.
type Edits struct {
	Env     []string // "NAME=value"
	Devices []Device
	Mounts  []Mount
	Groups  []int64 // supplementary group IDs
}

// Device is a device node. HostPath is Path if empty.
type Device struct {
	Path, HostPath string
	// Permissions are letters of "rwm" (m is mknod); empty means all.
	Permissions string
}

// Mount is a bind mount.
type Mount struct {
	HostPath, ContainerPath string
	// ReadOnly, NoExec, NoSUID and NoDev are as in mount(8).
	ReadOnly, NoExec, NoSUID, NoDev bool
	Propagation                     string // "private" or "rslave"
}

type spec struct {
	Version        string         `json:"cdiVersion"`
	Kind           string         `json:"kind"`
	Devices        []specDevice   `json:"devices"`
	ContainerEdits containerEdits `json:"containerEdits"`
}

type specDevice struct {
	Name           string         `json:"name"`
	ContainerEdits containerEdits `json:"containerEdits"`
}

type containerEdits struct {
	Env         []string `json:"env"`
	DeviceNodes []struct {
		Path        string `json:"path"`
		HostPath    string `json:"hostPath"`
		Permissions string `json:"permissions"`
	} `json:"deviceNodes"`
	Mounts []struct {
		HostPath      string   `json:"hostPath"`
		ContainerPath string   `json:"containerPath"`
		Type          string   `json:"type"`
		Options       []string `json:"options"`
	} `json:"mounts"`
	AdditionalGIDs []int64           `json:"additionalGids"`
	Hooks          []json.RawMessage `json:"hooks"`
	NetDevices     []json.RawMessage `json:"netDevices"`
	IntelRDT       json.RawMessage   `json:"intelRdt"`
}

// Parse splits a CDI device name, "vendor.com/class=name".
func Parse(id string) (kind, name string, err error) {
	kind, name, ok := strings.Cut(id, "=")
	vendor, class, split := strings.Cut(kind, "/")
	if !ok || !split || vendor == "" || class == "" || name == "" || len(vendor) > maxName || len(class) > maxName ||
		len(name) > maxName ||
		strings.ContainsAny(kind+name, " \t\n\x00") {
		return "", "", fmt.Errorf("invalid CDI device name %.300q", id)
	}
	return kind, name, nil
}

// Find returns the edits for devices. It reads the specifications in dirs with each call.
func Find(dirs, ids []string) (Edits, error) {
	var out Edits
	wanted := map[string][]string{} // names by kind
	var kinds []string
	for _, id := range ids {
		kind, name, err := Parse(id)
		if err != nil {
			return Edits{}, err
		}
		if !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
		if !slices.Contains(wanted[kind], name) {
			wanted[kind] = append(wanted[kind], name)
		}
	}
	if len(kinds) == 0 {
		return out, nil
	}
	found, err := read(dirs, wanted)
	if err != nil {
		return Edits{}, err
	}
	shared := map[*spec]bool{} // specifications whose shared edits were added
	for _, kind := range kinds {
		for _, name := range wanted[kind] {
			at, ok := found[kind+"="+name]
			if !ok {
				return Edits{}, fmt.Errorf("unresolvable CDI device %s=%s", kind, name)
			}
			if !shared[at.spec] {
				shared[at.spec] = true
				if err := out.add(&at.spec.ContainerEdits); err != nil {
					return Edits{}, fmt.Errorf("CDI specification %s: %w", at.path, err)
				}
			}
			if err := out.add(&at.device.ContainerEdits); err != nil {
				return Edits{}, fmt.Errorf("CDI device %s=%s: %w", kind, name, err)
			}
		}
	}
	return out, nil
}

type location struct {
	spec   *spec
	device *specDevice
	path   string
	dir    int
}

// read finds the wanted devices. An unreadable file is an error only if a device is found in no other file.
func read(dirs []string, wanted map[string][]string) (map[string]location, error) {
	found := map[string]location{}
	var unread []error
	for i, dir := range dirs {
		names, err := list(dir)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			path := filepath.Join(dir, name)
			s, err := load(path)
			if err != nil {
				unread = append(unread, err)
				continue
			}
			for d := range s.Devices {
				device := &s.Devices[d]
				if !slices.Contains(wanted[s.Kind], device.Name) {
					continue
				}
				id := s.Kind + "=" + device.Name
				if was, ok := found[id]; ok && was.dir == i {
					return nil, fmt.Errorf("CDI device %s is in both %s and %s", id, was.path, path)
				}
				found[id] = location{s, device, path, i}
			}
		}
	}
	count := 0
	for _, names := range wanted {
		count += len(names)
	}
	if len(found) < count && len(unread) > 0 {
		return nil, errors.Join(unread...)
	}
	return found, nil
}

func list(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(maxFiles + 1)
	if len(names) > maxFiles {
		return nil, fmt.Errorf("%s contains more than %d files", dir, maxFiles)
	}
	if err != nil && len(names) == 0 {
		return nil, nil //nolint:nilerr // it is empty
	}
	slices.Sort(names)
	return slices.DeleteFunc(names, func(n string) bool {
		return filepath.Ext(n) != ".json" && filepath.Ext(n) != ".yaml"
	}), nil
}

func load(path string) (*spec, error) {
	data, err := bounded.File(path, maxFile)
	if err != nil {
		return nil, fmt.Errorf("CDI specification: %w", err)
	}
	s := &spec{}
	if filepath.Ext(path) == ".yaml" {
		err = yaml.Unmarshal(data, s)
	} else {
		err = json.Unmarshal(data, s)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("CDI specification %s: %w", path, err)
	case !strings.HasPrefix(s.Version, "0.") && !strings.HasPrefix(s.Version, "1."):
		return nil, fmt.Errorf("CDI specification %s: unknown version %.20q", path, s.Version)
	}
	return s, nil
}

func (e *Edits) add(c *containerEdits) error {
	if len(c.Hooks) > 0 || len(c.NetDevices) > 0 || len(c.IntelRDT) > 0 && string(c.IntelRDT) != "null" {
		return errors.New("CDI hooks, network devices and Intel RDT are not supported on this node")
	}
	for _, v := range c.Env {
		if name, _, ok := strings.Cut(v, "="); !ok || name == "" || len(v) > maxText || strings.Contains(v, "\x00") {
			return fmt.Errorf("invalid environment variable %.100q", v)
		}
		e.Env = append(e.Env, v)
	}
	for _, n := range c.DeviceNodes {
		if err := paths(n.Path, n.HostPath); err != nil {
			return err
		}
		if strings.Trim(n.Permissions, "rwm") != "" {
			return fmt.Errorf("invalid permissions %.20q of device %s", n.Permissions, n.Path)
		}
		e.Devices = append(e.Devices, Device{n.Path, n.HostPath, n.Permissions})
	}
	for _, m := range c.Mounts {
		mount, err := bind(m.Type, m.Options)
		if err == nil {
			err = paths(m.ContainerPath, m.HostPath)
		}
		if err != nil {
			return fmt.Errorf("mount at %.100s: %w", m.ContainerPath, err)
		}
		mount.HostPath, mount.ContainerPath = m.HostPath, m.ContainerPath
		e.Mounts = append(e.Mounts, mount)
	}
	for _, g := range c.AdditionalGIDs {
		if g < 0 || g >= 1<<32-1 {
			return fmt.Errorf("invalid group %d", g)
		}
		if g != 0 && !slices.Contains(e.Groups, g) {
			e.Groups = append(e.Groups, g)
		}
	}
	if max(len(e.Env), len(e.Devices), len(e.Mounts), len(e.Groups)) > maxEdits {
		return fmt.Errorf("it has more than %d changes of a container", maxEdits)
	}
	return nil
}

// paths checks a path in the container and a path of the host; the latter may be empty.
func paths(container, host string) error {
	for _, p := range []string{container, host} {
		if p == "" && container != "" {
			continue
		}
		if !filepath.IsAbs(p) || len(p) > maxText || strings.Contains(p, "\x00") {
			return fmt.Errorf("invalid path %.100q", p)
		}
	}
	return nil
}

func bind(kind string, options []string) (Mount, error) {
	m := Mount{Propagation: "private"}
	if kind != "" && kind != "bind" && kind != "none" {
		return m, fmt.Errorf("unknown type %.20q: only bind mounts are made", kind)
	}
	for _, o := range options {
		switch o {
		case "ro":
			m.ReadOnly = true
		case "noexec":
			m.NoExec = true
		case "nosuid":
			m.NoSUID = true
		case "nodev":
			m.NoDev = true
		case "rw", "exec", "bind", "rbind", "private", "rprivate":
		case "slave", "rslave":
			m.Propagation = "rslave"
		default:
			return m, fmt.Errorf("unknown option %.20q", o)
		}
	}
	return m, nil
}
