package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/base/atomicfile"
	"github.com/coracle-dev/coracle/pkg/node/host/userns"
)

// record is a pod's file in RunDir/ns/UID. It is written before anything is acquired, and with Ready set after
// everything.
type record struct {
	IP        netip.Addr `json:"ip,omitzero"`
	HostPorts []HostPort `json:"hostPorts,omitempty"`
	HostNet   bool       `json:"hostNet,omitempty"`
	HostIPC   bool       `json:"hostIPC,omitempty"`
	// Users are the IDs of a pod with a user namespace; zero for others.
	Users userns.Range `json:"users,omitzero"`
	Ready bool         `json:"ready,omitempty"`
}

func (r record) ownUsers() bool { return r.Users.Count > 0 }

const recordFile = "pod.json"

func (c *Config) dir(uid string) string { return filepath.Join(c.RunDir, "ns", uid) }

func (c *Config) sandbox(uid string, r record) Sandbox {
	s := Sandbox{UID: uid, IP: r.IP,
		NetNS: filepath.Join(c.dir(uid), "net"),
		IPCNS: filepath.Join(c.dir(uid), "ipc"),
		UTSNS: filepath.Join(c.dir(uid), "uts")}
	if r.HostNet {
		s.NetNS, s.UTSNS = Host, Host
	}
	if r.HostIPC {
		s.IPCNS = Host
	}
	if r.ownUsers() {
		s.UserNS, s.IDs = filepath.Join(c.dir(uid), "user"), r.Users
	}
	return s
}

func (c *Config) save(uid string, r record) error {
	return atomicfile.WriteJSON(filepath.Join(c.dir(uid), recordFile), r)
}

// records reads all pods' records. A kill early in Setup or a crash of the machine can leave a directory without a
// readable record. It yields an empty record, so that the pod is found and released.
func (c *Config) records() (map[string]record, error) {
	entries, err := os.ReadDir(filepath.Join(c.RunDir, "ns"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the sandboxes: %w", err)
	}
	found := make(map[string]record, len(entries))
	for _, e := range entries {
		var r record
		if data, err := os.ReadFile(filepath.Join(c.dir(e.Name()), recordFile)); err == nil {
			if json.Unmarshal(data, &r) != nil {
				r = record{}
			}
		}
		found[e.Name()] = r
	}
	return found, nil
}

const nsfsMagic = 0x6e736673 // NSFS_MAGIC of linux/magic.h

func bound(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == nsfsMagic
}

func (c *Config) release(uid string) error {
	dir := c.dir(uid)
	for _, name := range []string{"net", "ipc", "uts", "user"} {
		path := filepath.Join(dir, name)
		for {
			err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
			if err == nil {
				if err := c.Failpoints.At("network.unmounted-" + name); err != nil {
					return err
				}
				continue // it may be mounted twice
			}
			if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
				break // not a mount point
			}
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove the sandbox of pod %s: %w", uid, err)
	}
	return nil
}

// List implements Network. It includes sandboxes whose Setup was interrupted: call Setup or Teardown for them.
func (n *Net) List(context.Context) ([]Sandbox, error) {
	n.mu.Lock()
	pods := maps.Clone(n.pods)
	n.mu.Unlock()
	all := make([]Sandbox, 0, len(pods))
	for _, uid := range slices.Sorted(maps.Keys(pods)) {
		all = append(all, n.sandbox(uid, pods[uid]))
	}
	return all, nil
}

// Addresses returns the addresses of all pods that have a network of their own, by UID.
func (n *Net) Addresses() map[string]netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := make(map[string]netip.Addr, len(n.pods))
	for uid, r := range n.pods {
		if !r.HostNet && r.IP.IsValid() {
			all[uid] = r.IP
		}
	}
	return all
}
