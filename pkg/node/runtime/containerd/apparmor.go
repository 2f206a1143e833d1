package containerd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"

	profiles "github.com/containerd/containerd/v2/contrib/apparmor"
	host "github.com/containerd/containerd/v2/pkg/apparmor"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

const (
	securityFS = "/sys/kernel/security/apparmor"
	// maxLoaded limits the kernel's list of loaded profiles, in bytes.
	maxLoaded = 4 << 20
)

// appArmor loads the default profile, one process at a time: apparmor_parser takes tens of milliseconds.
type appArmor struct{ loading sync.Mutex }

// defaultProfile is the name of this cluster's default profile. Purge removes it, so clusters do not share one.
func (c *Config) defaultProfile() string { return path.Base(c.CgroupRoot) + "-default" }

// profile returns the AppArmor profile of a container, "" for none. The default profile is checked for each container,
// because a reload of the host's profiles may remove it.
func (r *Runtime) profile(s runtime.Spec) (string, error) {
	if name, ok := strings.CutPrefix(s.AppArmor, runtime.LocalProfile); ok {
		return name, loadedProfile(securityFS, name)
	}
	// The pod manager refuses pods that ask for a profile where the host has no AppArmor.
	if s.Privileged || s.AppArmor == runtime.Unconfined || !host.HostSupports() {
		return "", nil
	}
	r.appArmor.loading.Lock()
	defer r.appArmor.loading.Unlock()
	name := r.config.defaultProfile()
	if err := profiles.LoadDefaultProfile(name); err != nil {
		return "", fmt.Errorf("load the default AppArmor profile: %w; appArmorProfile {type: Unconfined} starts the "+
			"container without it", err)
	}
	return name, nil
}

// loadedProfile returns an error if the kernel has no profile with this name.
func loadedProfile(dir, name string) error {
	f, err := os.Open(path.Join(dir, "profiles"))
	if err != nil {
		return fmt.Errorf("read the loaded AppArmor profiles: %w", err)
	}
	defer f.Close()
	list, err := bounded.All(f, maxLoaded)
	if err != nil {
		return fmt.Errorf("read the loaded AppArmor profiles: %w", err)
	}
	for line := range strings.Lines(string(list)) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok && strings.HasPrefix(rest, "(") {
			return nil
		}
	}
	return fmt.Errorf("AppArmor profile %q is not loaded on this node: load it with apparmor_parser", name)
}

// unloadProfile removes this cluster's default profile from the kernel.
func unloadProfile(dir, name string) error {
	err := os.WriteFile(path.Join(dir, ".remove"), []byte(name), 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil // no AppArmor, no such profile, or a container that may not change the host's
	}
	return err
}
